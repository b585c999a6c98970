"""Views: a SELECT over tables at a cut → a Delta table that is updated from cut to cut."""
