"""Tests of compaction that need no server."""
