"""Tests of cdc/postgres that run against real servers."""
