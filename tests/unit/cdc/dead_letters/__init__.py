"""Tests of cdc/dead_letters that need neither a server nor Spark."""
