"""The Spark session, and what Spark is asked beside PySpark."""
