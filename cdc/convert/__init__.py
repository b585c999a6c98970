"""Source records → Kafka records: what Kafka Connect calls converters."""
