"""The object store: its interface, and the implementations for a folder and for S3."""
