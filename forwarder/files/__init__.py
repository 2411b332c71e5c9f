"""Files on disk: which there are, what they hold, and which of them are the same.

`finder` lists the files of a source. `content` reads a file's bytes, decompressed if they are
compressed. `identity` says by content whether two files are the same. `handles` bounds how many
are open.
"""
