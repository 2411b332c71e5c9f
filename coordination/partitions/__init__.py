"""Work in many pieces, in a store that all workers share.

partition, transitions, sizes   a piece of work, its states, and its limits of size
store                           the contract of a store of partitions
in_memory                       a store in one process; see also `coordination.object_store`
                                and `coordination.dynamodb`
update                          changes by a process that does not hold the partition
expiry                          removes old COMPLETED partitions, where the store does not
"""
