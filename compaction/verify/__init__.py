"""Compare every derived table with the source at one instant, and report what differs."""
