"""Typed changes, the newest of each key, versions: pure functions between DataFrames."""
