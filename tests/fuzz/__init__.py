"""Hostile bytes → a value or one typed error: `make fuzz` for long runs, test_fuzz.py for short."""
