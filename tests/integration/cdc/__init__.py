"""Tests of cdc that run against real servers."""
