"""Who does which work, over stores that all programs share.

Nothing is exact by a lease alone. Every effect is also guarded by a compare-and-swap; a
lease only keeps two programs from doing the same work twice.

    partitions/     work that comes in many pieces, and what may become of a piece
    object_store/, dynamodb/   the stores that keep it
    coordinator/    whose the pieces are: acquired, kept, handed over, supplied
    named/          leases of things one of a kind, an object each
    groups/         consumers of the segment queue
    admin/          what operators see and do, of partitions and of named leases

`settings` and `open` choose the partitions' store; `storetime` and `counters` are shared by all.
"""
