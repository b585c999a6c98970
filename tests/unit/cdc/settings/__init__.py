"""Tests of cdc/settings that need neither a server nor Spark."""
