"""Plans of least communication: layouts as a graph, exact reshards and exact single einsums.

`prices` says what a collective costs, `states` makes the graph of layouts for a mesh and prices,
`reshard` and `einsum` search it. What is least is least for the prices given.
"""
