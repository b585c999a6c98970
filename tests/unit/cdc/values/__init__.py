"""Tests of cdc/values that need neither a server nor Spark."""
