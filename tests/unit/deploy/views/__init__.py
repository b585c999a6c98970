"""Tests of deploy/views that need no server."""
