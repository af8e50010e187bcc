"""tracelens: from a trace of a real training step to the shape change that makes it faster."""

__version__ = "0.1.0"
