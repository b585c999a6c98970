"""What talks to PostgreSQL: connections, catalog, publication, slot, replication stream."""
