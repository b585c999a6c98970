"""Container images and servers in containers, on an existing engine; tests never install one."""
