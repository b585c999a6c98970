"""What `millrace check` finds on real servers."""
