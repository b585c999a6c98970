"""Tests of cdc/orders that run against real servers."""
