"""An appender at work: what it reads, what waits in order, what it was given, its checkpoints."""
