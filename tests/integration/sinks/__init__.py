"""Tests of sinks that run against real servers."""
