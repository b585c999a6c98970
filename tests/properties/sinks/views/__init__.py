"""Random queries: what the rules make of them is what Spark makes of them."""
