"""Tests of sinks/changes that run against real servers."""
