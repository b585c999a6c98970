"""Commands about views."""
