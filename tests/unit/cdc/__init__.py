"""Tests of cdc that need neither a server nor Spark."""
