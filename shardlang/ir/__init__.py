"""The intermediate representation: types, operations, programs, plans, and their printer."""
