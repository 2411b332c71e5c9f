"""A pipeline as its file defines it: YAML, variables, filters, and a folder of such files."""
