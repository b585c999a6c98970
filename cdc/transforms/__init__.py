"""Source records → other source records: what Kafka Connect calls single message transforms."""
