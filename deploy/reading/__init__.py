"""Commands that show the log's contents."""
