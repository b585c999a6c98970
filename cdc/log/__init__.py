"""The state topics: one reader and one writer."""
