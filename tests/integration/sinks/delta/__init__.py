"""Tests of sinks/delta that run against real servers."""
