"""Tests of snapshots that need neither a server nor Spark."""
