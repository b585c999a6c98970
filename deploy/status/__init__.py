"""The pipeline's state: the source, the log, the daemon and each sink, for people and programs."""
