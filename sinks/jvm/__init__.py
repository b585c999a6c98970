"""Jars that a Spark driver's JVM loads in addition to Spark's: our own, and other projects'."""
