"""Tests of compaction/verify/lakehouse that run against real servers."""
