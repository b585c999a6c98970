"""The daemon: start, snapshot, stream, acknowledge; alone has effects on both servers."""
