"""Records that can't be written → dead letters and claims, and their outcome."""
