"""Inputs that nobody meant: mutated traces, reports and configurations, and what must hold of each."""
