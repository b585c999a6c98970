"""The extension: a frame → key and value bytes in one pass, for the common kinds and types."""
