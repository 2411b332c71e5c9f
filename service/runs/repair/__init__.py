"""Repair: rebuilds a run's log from segments and table where objects vanished."""
