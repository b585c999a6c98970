"""Views: a SELECT over the lakehouse's tables at a cut → a Delta table that follows from cut to cut."""
