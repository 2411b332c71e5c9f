"""Runs in the store: manifests, chunks with their indexes, text marks and deletions."""
