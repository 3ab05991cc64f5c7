"""Rows of `tests/bad_input/test_bad_input.py`."""
