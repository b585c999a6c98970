"""The lakehouse's tables at an instant, and what their own rows tell of them."""
