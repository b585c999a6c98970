"""Tests of sinks/run that need neither a server nor Spark."""
