"""Tests of snapshots that need no server."""
