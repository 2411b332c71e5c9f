"""Runs in the store: manifests, chunks with their indexes, watermarks and deletions."""
