"""Tests of cdc/compiled that need neither a server nor Spark."""
