"""Tests of cdc/wal that run against real servers."""
