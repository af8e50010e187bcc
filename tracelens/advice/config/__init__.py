"""A model's sizes from the configuration it is trained with."""

from tracelens.advice.config.model import Layout, ModelConfig
from tracelens.advice.config.reading import config_from_flags, read_config

__all__ = ["Layout", "ModelConfig", "config_from_flags", "read_config"]
