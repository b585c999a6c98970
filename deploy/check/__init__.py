"""Configuration, servers and this machine → what Millrace needs of each: ok, or what mends it."""
