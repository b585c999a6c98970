"""Faults of every kind under a random load, and what has come of it in the log."""
