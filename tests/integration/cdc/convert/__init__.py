"""Tests of cdc/convert that run against real servers."""
