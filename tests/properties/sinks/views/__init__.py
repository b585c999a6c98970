"""Random queries: the rules give the same results as Spark."""
