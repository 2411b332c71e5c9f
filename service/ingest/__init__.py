"""Taking batches: which id one gets, whether it is known, and when it is safe."""
