"""Mutation fuzzer of guards: programs, what they read, and ways to change it; see `core.py`."""
