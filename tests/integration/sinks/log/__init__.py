"""Tests of sinks/log that run against real servers."""
