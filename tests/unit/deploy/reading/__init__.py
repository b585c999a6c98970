"""Tests of deploy/reading that need no server."""
