"""Rules: which shapes of a step waste the GPU, and what changing them saves, predicted where it can be."""

from tracelens.rules.advise import advise
from tracelens.rules.catalog import RULES, explain
from tracelens.rules.engine.facts import Advice, StepFacts

__all__ = ["RULES", "Advice", "StepFacts", "advise", "explain"]
