"""Backups: `repository.py` is the folder that holds them, `save.py` copies a store into it,
`journals.py` the data folders of nodes, and `restore.py` copies both back.
"""
