"""Tests of cdc/wal that need neither a server nor Spark."""
