"""Tests of cdc/kafka that run against real servers."""
