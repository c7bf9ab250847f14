"""The command line: one module a command, `main` for what they share."""
