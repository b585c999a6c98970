"""Tests of sinks/changes that need neither a server nor Spark."""
