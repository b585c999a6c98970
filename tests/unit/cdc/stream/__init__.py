"""Tests of cdc/stream that need neither a server nor Spark."""
