"""Tests of cdc/log that run against real servers."""
