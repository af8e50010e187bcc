"""What the modules of this room say, by subject; nothing is computed here."""
