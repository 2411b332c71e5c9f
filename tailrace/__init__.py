"""The command line: composes the programs, and speaks to a running service."""
