"""Advice: which shapes of a step waste the GPU, and what changing them saves, predicted where it can be."""

from __future__ import annotations

from tracelens.advice.advise import advise
from tracelens.advice.facts import Advice, Outcome, Rule, StepFacts
from tracelens.advice.pages import explain
from tracelens.advice.rules import RULES

__all__ = ["RULES", "Advice", "Outcome", "Rule", "StepFacts", "advise", "explain"]
