"""Joined documents: lakehouse tables at one cut → documents with embedded rows of others."""
