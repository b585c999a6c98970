"""Tests of deploy/views on real servers."""
