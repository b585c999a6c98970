"""Typed changes, the newest of each key, versions: pure, from one DataFrame to another."""
