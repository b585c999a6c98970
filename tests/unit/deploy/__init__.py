"""Tests of deploy that need no server."""
