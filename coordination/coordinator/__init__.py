"""One process among those that share partitions: coordinator ─► work queue ─► lease.

coordinator     what a program opens: one identity, one heartbeat, a work queue for each type
work_queue      the partitions of a type: acquire, supply, wait until all are complete
lease           one that we hold: save, complete, close, give up
lease_manager   all that we hold, and what keeps it
supply          makes partitions, as one of the workers at a time
workers         who else is there, and what is everybody's fair share
limits          times and numbers; `coordination.counters` and metrics say what happened
"""
