"""One process among those that share partitions: coordinator ─► work ─► held.

coordinator   what a program opens: one identity, one heartbeat, a `Work` for each type
work          the partitions of a type: acquire, supply, wait until all are complete
held          one that we hold: save, complete, close, give up
holder        all that we hold, and what keeps it
supply        makes partitions, as one of the workers at a time
workers       who else is there, and what is everybody's fair share
limits        times and numbers; counters and measures say what happened
"""
