"""Work in many pieces, in a store that all workers share.

partition     a piece of work, and its limits of size
transitions   its states, and how it gets from one to the next
store         the contract of a store of partitions, and what can be done with every store
in_memory     a store in one process; see also `coordination.object_store`
              and `coordination.dynamodb`
"""
