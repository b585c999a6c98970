"""Tests of deploy/commands that run against real servers."""
