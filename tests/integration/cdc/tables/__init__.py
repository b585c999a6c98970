"""Tests of cdc/tables that run against real servers."""
