"""Tests of sinks/spark that need neither a server nor Spark."""
