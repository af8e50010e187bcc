"""A model's sizes from the configuration it is trained with."""

from tracelens.config.model import Layout, ModelConfig
from tracelens.config.reading import config_from_flags, read_config

__all__ = ["Layout", "ModelConfig", "config_from_flags", "read_config"]
