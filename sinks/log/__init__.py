"""Millrace's own topics → typed changes."""
