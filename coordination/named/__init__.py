"""Leases of things that are one of a kind: `lease` is one, `leases` takes them, `locks` lists."""
