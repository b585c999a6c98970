"""A change → a record by Debezium's rules."""
