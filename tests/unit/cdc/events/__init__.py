"""Tests of cdc/events that need neither a server nor Spark."""
