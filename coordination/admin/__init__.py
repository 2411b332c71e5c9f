"""Lets operators inspect (`overview`) and change (`admin`) partitions and named leases."""
