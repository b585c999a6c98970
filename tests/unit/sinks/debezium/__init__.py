"""Tests of sinks/debezium that need neither a server nor Spark."""
