"""The node's write-ahead journal: a batch is acknowledged once it is here.

`format` owns the bytes, `index` the columns kept in memory, and `file` is one file. `journal`
appends, syncs, rolls and releases files, and `recycling` overwrites old ones. `scan` reads a
file back, `recovery` opens a folder after a crash, and `view` reads the batches that are held.
"""
