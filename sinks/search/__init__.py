"""Latest rows → search documents: one index a table, versioned by commit LSN."""
