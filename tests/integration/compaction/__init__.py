"""Tests of compaction that run against real servers."""
