"""Latest rows → search documents: one index per table, versioned by commit LSN."""
