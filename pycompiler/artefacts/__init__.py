"""Compiled callables as files: `save.save` writes the entries of one, `load.load` gives them to a function elsewhere."""
