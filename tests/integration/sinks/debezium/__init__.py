"""Tests of sinks/debezium that run against real servers."""
