"""Orders to the daemon, as logical messages of the source → the records that execute them."""
