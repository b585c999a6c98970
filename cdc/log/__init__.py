"""The log's state: the only reader of state topics, and of the offsets that a run uses."""
