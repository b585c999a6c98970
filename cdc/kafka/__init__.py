"""What talks to Kafka: topics, and the transactional producer."""
