"""What the accounting says of its figures: where they come from, or why they are not known."""
