"""What `tailrace leases` works with: a store or a service, and tables for people."""
