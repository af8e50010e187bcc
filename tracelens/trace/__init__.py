"""The trace room: Kineto JSON in, columnar tables and links out."""

from .links import Links, Steps, link
from .reader import read_trace
from .tables import Damage, Trace

__all__ = ["Damage", "Links", "Steps", "Trace", "link", "read_trace"]
