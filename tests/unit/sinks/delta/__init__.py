"""Tests of sinks/delta that need neither a server nor Spark."""
