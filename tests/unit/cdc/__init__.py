"""Tests of cdc that need no server."""
