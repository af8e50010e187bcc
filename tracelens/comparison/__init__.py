"""Before and after a change: two reports in, one comparison out. Knows nothing of how it is shown."""
