"""Tests of deploy that need neither a server nor Spark."""
