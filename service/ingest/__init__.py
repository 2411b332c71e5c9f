"""Ingesting batches: which id a batch gets, whether it is known, and when it is durable."""
