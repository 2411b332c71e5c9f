"""Appenders: they take the events of a pipeline; their contract, kinds and registry."""
