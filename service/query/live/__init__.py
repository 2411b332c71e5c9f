"""Live matches of all runs: what was just acknowledged, in the order of ULIDs within a window.

| module | responsibility |
| --- | --- |
| `cursor` | how far a reader is |
| `reorder` | records are held back for the window, then given in order |
| `matching` | which of some records match |
| `followed` | one search that is followed, and its newest pieces |
| `elsewhere` | what is asked of other nodes |
| `pins` | the hot part of this node at one moment |
| `reach` | of each node, what can be read at a moment |
| `matches` | the live end: new records of the journal, looked at once for all readers |
| `storage` | what a reader has missed, from journal, segments and table |
| `reader` | one reader: storage first, then the live end |

**The invariant.** A reader's cursor is (`seen`, `last`): per node a position, and a record's key.
Given out are exactly the matching records whose position is below `seen` of their node and whose
key is at most `last`. So what is still to be given is known from the cursor alone, wherever the
records are by then, and after any crash:

- a record with a higher key is on time, and is given in the order of keys;
- a record with a lower key, at `seen` or above, is late: its ULID is below what was given before it
  arrived. It is given in the order of positions, and marked.

With several nodes it is the same: each has its position. If a reader goes on where a node cannot be
asked, the cursor's position of that node goes back to where its records can be read, and `given`
remembers what was given beyond.

`last` follows the clock, `window` behind it, so a record is late if it was acknowledged more than
the window after the time of its ULID. A record whose ULID is ahead of the clock waits for its time.
"""
