"""How several drivers share the work: by leases, which only save work."""
