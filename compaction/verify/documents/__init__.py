"""Search indexes and joined documents, at an instant or at their cut → their hashes."""
