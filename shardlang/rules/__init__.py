"""The rules: what an operation, a collective or a cotangent means for layouts."""
