"""How the pipeline is, by real servers that are broken in ten ways."""
