"""Appenders: what takes the events of a pipeline, and how one is made."""
