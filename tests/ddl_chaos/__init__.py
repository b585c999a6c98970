"""DDL of every kind at random, and derived tables that have to be the source all the same."""
