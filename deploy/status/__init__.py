"""How the pipeline is: the source, the log, the daemon and each sink, for people and programs."""
