"""Tests of the sinks against real servers."""
