"""Leases of things that are one of a kind, an object each.

record   the object, and the names of leases
leases   takes, renews and releases them: what a process holds
stored   all that there are, as operators see and free them
"""
