"""What rules share: facts, bounds, simulated savings, wording of the common parts, effects of a change."""
