"""Leases and partitions: they decide which process does which piece of work.

All programs that share a store agree through it. No effect relies on a lease alone: a
compare-and-swap guards each effect, too. A lease only keeps two programs from doing the same work
twice.

    lease         the fields of every lease: owner, end, fencing token; when it may be taken over
    leases        the leases of one process: acquired, renewed, released
    partitions    work that comes in many pieces, with progress and an end
    work_queue    the partitions of one process, and the supply of new ones
    named_leases  leases of single things, one object for each
    groups        leases of segments by consumers of the queue, one object for each group
    pipelines     checkpoints of pipelines, and their control by operators
    admin         operators' view of leases, and their actions

    object_store, dynamodb, memory_store   stores of partitions
    settings, open                         settings of the store, and opening it
"""
