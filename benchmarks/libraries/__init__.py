"""Training steps of models of six libraries that nobody here wrote, on the meta device."""
