"""Bytes → pgoutput messages: pure, no I/O."""
