"""The parts of the report against measured runs; `benchmarks/measured.py` is its command."""
