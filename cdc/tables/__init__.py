"""The state, schema versions and encoder of each captured table."""
