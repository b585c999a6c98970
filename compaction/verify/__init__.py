"""Every derived table against the source at one instant, and what differs."""
