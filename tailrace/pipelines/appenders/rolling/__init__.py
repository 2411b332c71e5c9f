"""Rolling files and rolling objects: paths, rolls, retention, and the return to a checkpoint."""
