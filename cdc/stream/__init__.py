"""pgoutput messages → committed transactions, and their rows → records."""
