"""Tests of snapshots that run against real servers."""
