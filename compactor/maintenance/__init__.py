"""Maintenance: removes objects that nobody needs any more."""
