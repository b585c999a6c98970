"""Views: a SELECT over tables at a cut → a Delta table that follows from cut to cut."""
