"""Other nodes on the same store: how a node finds them, asks them and answers them.

    register      the entries of nodes in the store, and which of them are lost or let go
    rpc           one question to one node over HTTP, and how it may end
    membership    this node among the others, from its start to its stop
    handlers      the answers of this node
    remote_lines  lines of a run or a search that other nodes hold
    remote_feeds  new records of other nodes, for live readers
    shedding      a node with too much to do refuses appends that clients will send elsewhere

Without `nodes.secret` a node has no entry, asks no other node and answers none.
"""
