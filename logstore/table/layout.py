"""How a table file is laid out for readers, whoever writes it.

Lines are sorted by (fqn, run_id, ulid), so a row group has a narrow range of that key. Readers
skip groups by their statistics; a group is also what an index of words can tell apart.

A layout has a number, which is in the names of files that have it (`names.py`). This is layout 1:
every row group of a file but the last has exactly `ROW_GROUP_ROWS` rows. Only where lines are so
long that the group would have more than `ROW_GROUP_BYTES` does it end earlier, so a reader takes
the number of rows from the footer. In layout 0 a group ends at 128 MiB.
"""

from __future__ import annotations

from typing import Final

LAYOUT: Final = 1
"""Rises with a change that is worth writing files anew. Older programs wrote 0: no number."""
ROW_GROUP_ROWS: Final = 32_768
"""Of 32,768 to 131,072 the fastest to search."""
ROW_GROUP_BYTES: Final = 16 << 20
"""About, as compressed: 32,768 lines of 2 KB have less. Writers hold a group in memory."""
