"""Tests of cdc/convert that need neither a server nor Spark."""
