"""Tests of cdc/kafka that need neither a server nor Spark."""
