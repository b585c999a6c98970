"""Tests of deploy/docs that need neither a server nor Spark."""
