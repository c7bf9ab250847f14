"""Pipelines: schedules as tables, what they are checked for, and what the literature says of them."""
