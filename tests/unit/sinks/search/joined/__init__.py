"""Tests of sinks/search that need neither a server nor Spark."""
