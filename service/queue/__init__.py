"""The segment queue: consumer groups that lease segments, read them, and commit them."""
