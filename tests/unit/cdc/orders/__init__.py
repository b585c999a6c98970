"""Tests of cdc/orders that need neither a server nor Spark."""
