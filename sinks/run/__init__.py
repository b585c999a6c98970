"""A bounded run: its plan, its options, its outcome."""
