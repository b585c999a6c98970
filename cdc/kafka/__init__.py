"""Records and settings → Kafka: topics, and the transactional producer."""
