"""Tests of cdc/transforms that need neither a server nor Spark."""
