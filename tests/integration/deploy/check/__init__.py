"""Findings of `millrace check` on real servers."""
