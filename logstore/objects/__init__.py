"""The object store: the seam, and what stands behind it."""
