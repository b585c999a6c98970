"""Tests of cdc/capture that need neither a server nor Spark."""
