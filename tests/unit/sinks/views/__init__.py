"""The rules of what is touched, without Spark."""
