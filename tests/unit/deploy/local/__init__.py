"""Tests of deploy/local that need neither a server nor Spark."""
