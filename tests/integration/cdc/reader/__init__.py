"""Tests of cdc/reader that run against real servers."""
