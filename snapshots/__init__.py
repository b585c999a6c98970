"""Existing rows → the same events as the stream's, consistent with it."""
