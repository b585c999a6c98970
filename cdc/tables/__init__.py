"""What is known of each captured table: its state, its schema versions, its encoder."""
