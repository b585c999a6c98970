"""Tests of cdc/stream that run against real servers."""
