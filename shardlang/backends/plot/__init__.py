"""Pictures of costs, drawn with matplotlib (the extra `plot`): curves over a symbol, and schedules."""
