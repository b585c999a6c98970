"""Tests of sinks/search/joined that run against real servers."""
