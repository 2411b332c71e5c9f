"""Maintenance: removes expired, deleted and consumed data, and makes skip indexes."""
