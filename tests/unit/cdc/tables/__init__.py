"""Tests of cdc/tables that need neither a server nor Spark."""
