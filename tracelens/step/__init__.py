"""A training step that can be changed on paper: measured from a trace, or planned from a configuration."""
