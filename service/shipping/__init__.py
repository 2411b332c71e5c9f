"""Segments on their way to the store: cut, shipped, confirmed, and whose numbers they are."""
