"""Tests of sinks/run that run against real servers."""
