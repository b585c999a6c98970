"""Tests of cdc/postgres that need neither a server nor Spark."""
