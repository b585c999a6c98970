"""Verify: the differences that it finds, and its limits."""
