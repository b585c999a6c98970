"""Tests of deploy/status that need neither a server nor Spark."""
