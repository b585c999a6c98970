"""The rules for touched groups, without Spark."""
