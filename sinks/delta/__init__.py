"""Delta Lake: one table per captured table, and the plans of the runs."""
