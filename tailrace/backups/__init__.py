"""Backup and restore of a store and the data folders of its nodes.

repository  the folder of backups: contents by checksum, and a list for each backup
save        copies a store and data folders into a backup while services work on them
restore     copies a backup into an empty store and an empty data folder
setup       opens all of these from settings
"""
