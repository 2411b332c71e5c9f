"""What clients report of their runs: pipelineStatus, progress, metrics."""
