"""Mutation fuzzer of guards: programs, the state that they read, and mutations of that state; see `core.py`."""
