"""Log → derived tables: PySpark jobs that know records, but not PostgreSQL."""
