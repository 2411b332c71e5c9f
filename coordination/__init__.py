"""Who does which work: leases over the object store that all programs share.

Nothing is exact by a lease alone. Every effect is also guarded by a compare-and-swap; a
lease only keeps two programs from doing the same work twice.
"""
