"""Everything that connects to PostgreSQL: sessions, catalog, publication, slot, stream."""
