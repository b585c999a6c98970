"""Server, role, publication and tables → what keeps us from capturing, and what mends it."""
