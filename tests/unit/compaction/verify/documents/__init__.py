"""Tests of compaction/verify/documents that need neither a server nor Spark."""
