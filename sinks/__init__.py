"""Log → derived tables: PySpark jobs that know records, and nothing of PostgreSQL."""
