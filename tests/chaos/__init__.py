"""Faults of every kind under a random load, and a check of the log afterwards."""
