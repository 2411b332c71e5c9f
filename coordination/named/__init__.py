"""Named leases: each protects a thing that exists once, and is an object of its own.

record   the object, and the names of leases
leases   the leases of one process: acquired, renewed, released
stored   all leases of a store, as operators see and free them
"""
