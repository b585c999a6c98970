"""Signals, which any permitted user may have written → the reads that they request."""
