"""Tests of sinks/search that run against real servers."""
