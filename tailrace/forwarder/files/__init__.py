"""Files on disk: which exist, what they hold, and which of them are the same.

finder   lists the files of a source by its patterns
content  reads a file's bytes, decompressed; compares files; bounds how many are open
"""
