"""The attribution room: for every GPU event its step, phase, component, layer and module, with evidence."""

from tracelens.attribution.attribute import Attribution, attribute

__all__ = ["Attribution", "attribute"]
