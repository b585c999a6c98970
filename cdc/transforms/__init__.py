"""Source records → other source records: the single message transforms of Kafka Connect."""
