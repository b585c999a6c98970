"""Recorded events of a real Debezium, and the runner that compares Millrace with them."""
