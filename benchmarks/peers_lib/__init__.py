"""The parts of the benchmark against other partitioners; `benchmarks/peers.py` is its command."""
