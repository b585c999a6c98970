"""Tests of cdc/log without a server."""
