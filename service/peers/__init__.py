"""Other nodes on the same store: how a node finds them, asks them and answers them.

    register      the entries of nodes in the store; silent, lost and decommissioned nodes
    rpc           one question to one node over HTTP, and its possible outcomes
    membership    joins the other nodes, keeps this node's entry, notifies the others, leaves
    handlers      the answers of this node
    remote_lines  lines of a run or a search that other nodes hold
    remote_feeds  new records of other nodes, for live searches
    shedding      refuses appends of an overloaded node that clients will send to another one

Without `nodes.secret` a node has no entry, asks no other node and answers none.
"""
