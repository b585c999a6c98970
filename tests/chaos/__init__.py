"""Faults of every kind under a random load → is the log what PostgreSQL committed?"""
