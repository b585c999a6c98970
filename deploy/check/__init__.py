"""Configuration, servers and this machine → Millrace's requirements: met, or the remedy."""
