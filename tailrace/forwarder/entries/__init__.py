"""Bytes of a file to records, and records to the body of a batch."""
