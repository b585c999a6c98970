"""Tests of sinks that need no server."""
