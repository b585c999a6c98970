"""DDL of every kind at random, and derived tables that must still equal the source."""
