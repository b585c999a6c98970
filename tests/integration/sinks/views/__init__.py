"""Views of a lakehouse, with real servers."""
