"""Tests of deploy/local that run against real servers."""
