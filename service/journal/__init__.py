"""The node's write-ahead journal: what is acknowledged stands here first.

`format` owns the bytes, `index` the columns kept of them, `scan` reads a file back,
`file` is one file, `journal` appends, syncs, rolls and releases, `recycling` makes files over
old ones, `recovery` opens a folder after a crash, `view` reads what is held.
"""
