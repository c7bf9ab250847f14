"""Advice on plans: what in an explicit program costs more than it has to, and why a plan is as it is.

Everything here reads finished plans; what is cheaper is found in the planner's graph of layouts.
"""
