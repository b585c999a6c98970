"""Keeps the log, the lakehouse and the indexes small."""
