"""Other nodes on the same store: who they are, and what this node asks and answers.

| module | responsibility |
| --- | --- |
| `register` | which nodes there are, from their entries in the store |
| `transport` | one question to one node, and how it may end |
| `http` | the same over HTTP, with pooled connections |
| `contact` | every question that this node asks, what came of it, and who is not heard |
| `peers` | a question to all of them at once, with a deadline |
| `messages` | how questions and answers are written |
| `hot` | lines of a run that other nodes hold |
| `others` | what run logs ask and tell the others |
| `journals` | new records of the others, for live searches |
| `feed` | news of the others, for live streams |
| `membership` | this node among the others, from its start to its stop |
| `answers` | what this node answers to others |

Without `nodes.secret` a node has no entry, asks nobody and answers nobody.
"""
