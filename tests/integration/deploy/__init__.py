"""Tests of deploy that run against real servers."""
