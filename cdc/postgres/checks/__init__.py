"""Server, role, publication and tables → the obstacles to capturing, with their remedies."""
