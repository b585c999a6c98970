"""The daemon: start, snapshot, stream, acknowledge. Only this package changes both servers."""
