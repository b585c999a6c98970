"""Joined documents: lakehouse tables at one cut → documents with rows of others in them."""
