"""Backends: what is made of a plan and of its cost: JAX code, and reports in several formats."""
