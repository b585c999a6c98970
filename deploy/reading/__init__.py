"""Commands that show what is in the log."""
