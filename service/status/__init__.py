"""Reports of clients about their runs: pipelineStatus, progress, metrics."""
