"""Leases and partitions: they decide which process does which piece of work.

All programs that share a store agree through it. No effect relies on a lease alone: every
effect is also guarded by a compare-and-swap. A lease only keeps two programs from doing the
same work twice.

    lease           what every lease keeps: owner, end, fencing token; when it may be taken over
    partitions/     leases of work that comes in many pieces, with progress and an end
    object_store/, dynamodb/   the stores that keep partitions
    coordinator/    the partitions of one process: acquired, kept, handed over, supplied
    named/          leases of things that are one of a kind, an object each
    groups          leases of segments by the consumers of the queue, one object a group
    admin/          what operators see and do, of partitions and of named leases

`settings` and `open` choose the store of partitions. All parts use `storetime`, and `counters`,
which names the metrics too.
"""
