"""What talks to Kafka: topics, the transactional producer, state records."""
