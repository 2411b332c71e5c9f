"""Reports passes: a progress bar, the log, metrics for Prometheus, and a line of JSON each."""
