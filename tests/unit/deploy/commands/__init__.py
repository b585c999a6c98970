"""Tests of deploy/commands that need neither a server nor Spark."""
