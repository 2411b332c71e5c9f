"""The write-ahead journal of a node. A batch is acknowledged once the journal holds it.

format    the bytes of a journal file, and the errors of damaged ones
file      one file: append, the index in memory, reading back
journal   the open journal: append, sync, roll and release files
state     which records the journal holds, rebuilt from its files
files     releases old files and overwrites them
recovery  opens a folder after a crash
reader    pins files, and reads batches from them
"""
