"""Verify: what it finds, and what it doesn't."""
