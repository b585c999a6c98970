"""Tests of deploy/check that need no server."""
