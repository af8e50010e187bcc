"""A model's sizes from the configuration it is trained with."""

from tracelens.config.configuration import Configuration, Layout
from tracelens.config.reading import config_from_flags, read_config

__all__ = ["Layout", "Configuration", "config_from_flags", "read_config"]
