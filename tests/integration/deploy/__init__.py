"""Tests of the local servers, and of the rows and the life in them."""
