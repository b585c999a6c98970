"""Recorded events of a real Debezium, and the runner that holds Millrace to them."""
