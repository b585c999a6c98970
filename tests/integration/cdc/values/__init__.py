"""Tests of cdc/values that run against real servers."""
