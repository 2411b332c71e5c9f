"""Rolling files and rolling objects: paths, rolls, retention, and the way back to a checkpoint."""
