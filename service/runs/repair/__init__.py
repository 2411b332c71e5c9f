"""A run's log made again from segments and table where objects vanished."""
