"""Spark's jobs and session. Only these modules import pyspark."""
