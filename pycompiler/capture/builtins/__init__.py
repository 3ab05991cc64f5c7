"""Handlers of builtin functions, one file a family; importing this package fills `calls.BUILTINS`."""
