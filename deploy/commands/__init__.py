"""The commands of `millrace`, a module each."""
