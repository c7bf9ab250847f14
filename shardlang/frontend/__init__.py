"""The front end: from a text to a resolved program."""
