"""Shipping segments to the store: cutting, uploading, confirming, and checking their numbers."""
