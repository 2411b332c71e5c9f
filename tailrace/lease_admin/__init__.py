"""The parts of `tailrace leases`: access to a store or a service, and tables for people."""
