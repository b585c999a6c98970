"""Tests of compaction/verify/documents that run against real servers."""
