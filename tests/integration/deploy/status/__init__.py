"""The pipeline's status, on real servers that are broken in ten ways."""
