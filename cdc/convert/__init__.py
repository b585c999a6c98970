"""Source records → Kafka records: the converters of Kafka Connect."""
