"""Tests of deploy/demo that run against real servers."""
