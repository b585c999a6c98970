"""Signals, which anybody may have written → the reads that they ask for."""
