"""Tests of compaction/verify/lakehouse that need no server."""
