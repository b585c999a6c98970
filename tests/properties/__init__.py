"""Properties: two ways that must mean the same, over random input."""
