"""Tests of sinks/spark that run against real servers."""
