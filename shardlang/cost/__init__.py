"""Costs: what a plan moves, computes and holds, in formulas and numbers; the only user of sympy."""
