"""The HTTP API of a node: a raw append route, and FastAPI for everything else."""
