"""How a report is shown: one module per format; none of them computes what it shows, and none prints."""
