"""Log pipelines: they read segments, put records into the order of their time, and feed appenders.

    segments ──► source ──► filter ──► event buffer ──► appender
                  │            (one task an appender, which has a cursor of its own)
                  └── a segment is fetched and decoded once for all that want it

`process` runs the pipelines of a folder. Each appender of a pipeline is a unit of work under a
lease (`worker`). Its checkpoint is the progress of the lease
(`tailrace.coordination.pipelines.Checkpoint`).
"""
