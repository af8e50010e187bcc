"""A model's sizes from the configuration it is trained with."""

from tracelens.config.configuration import Configuration
from tracelens.config.reading import config_from_flags, read_config

__all__ = ["Configuration", "config_from_flags", "read_config"]
