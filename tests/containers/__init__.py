"""Container images and servers in containers, on an engine that answers; none is ever installed."""
