"""What Spark does, and how it is started. Only these modules import pyspark."""
