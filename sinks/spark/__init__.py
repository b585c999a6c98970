"""The Spark session, and calls to Spark that PySpark doesn't have."""
