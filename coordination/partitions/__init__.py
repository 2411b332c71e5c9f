"""Work in many pieces, in a store that all workers share.

partition, transitions, sizes   a piece of work, what may become of it, how large it may be
store                           what a store of them does
in_memory                       a store in one process; see also `coordination.object_store`
                                and `coordination.dynamodb`
update                          changes by somebody who does not hold it
expiry                          COMPLETED ones go, where the store itself does not do it
"""
