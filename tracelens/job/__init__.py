"""Whole jobs: one summary per rank, merged to one answer for all of them."""
