"""Tests of sinks that need neither a server nor Spark."""
