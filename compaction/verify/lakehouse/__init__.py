"""The lakehouse's tables at an instant, and checks of their own rows."""
