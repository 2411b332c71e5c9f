"""Who does which work, over stores that all programs share.

Nothing is exact by a lease alone. Every effect is also guarded by a compare-and-swap; a
lease only keeps two programs from doing the same work twice.

    partitions    work that comes in many pieces: partition, transitions, sizes
      their stores  store (the contract), in_memory (with due), object_store/, dynamodb/;
                    storetime, expiry; settings and open choose one
      whose they are  coordinator ─► work ─► held; holder, supply, workers, limits, counters
    named leases  one of a kind, an object each: lease, leases
    for operators both kinds in one shape: oversight, overview, locks
    groups        consumers of the segment queue: groups, group_objects
"""
