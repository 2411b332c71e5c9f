"""One process among those that share partitions: coordinator ─► work queue ─► lease.

coordinator     what a program opens: one identity, one heartbeat, a work queue for each type
work_queue      the partitions of a type: acquire, supply, wait until all are complete
lease           one lease that this process holds: save, complete, close, give up
lease_manager   all leases that this process holds, and the heartbeat that renews them
supply          makes partitions; one of the workers at a time does so
workers         the other workers of a type, and the fair share of each
limits          durations and counts; `coordination.counters` and metrics count what happens
"""
