"""The log's state: the one reader of state topics, and of the offsets that a run goes by."""
