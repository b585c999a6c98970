"""Tests of sinks/log that need neither a server nor Spark."""
