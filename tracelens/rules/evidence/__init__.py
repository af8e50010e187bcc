"""What rules look at: which rows of a step are a case of something, and what is known of it."""
