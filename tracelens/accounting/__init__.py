"""The accounting room: where the time of a step went, in the report's own terms."""
