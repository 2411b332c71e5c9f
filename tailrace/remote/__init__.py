"""What the verbs share that ask a running service: how it is called, and its streams of events."""
