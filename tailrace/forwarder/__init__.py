"""Ships log files to Tailrace: each line once, through every kind of rotation.

The bytes stay in the source files. What is sent is a byte range of one file, whose batch id and
range are written down before the first attempt.
"""
