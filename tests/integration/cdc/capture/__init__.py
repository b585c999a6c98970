"""Tests of cdc/capture that run against real servers."""
