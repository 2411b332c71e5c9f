"""Taking flushed segments into the table: planned, verified, merged, committed, batch by batch."""
