"""Tests of cdc/records that need neither a server nor Spark."""
