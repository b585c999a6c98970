"""Faults: a process dies, is cut off or is refused, and nothing is lost."""
