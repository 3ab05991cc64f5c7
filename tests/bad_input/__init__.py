"""Rows of `tests/test_bad_input.py`."""
