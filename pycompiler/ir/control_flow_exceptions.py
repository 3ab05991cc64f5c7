"""Exceptions that leave a stage of a compile, to start it anew or to end it."""


class LeavesCompile(Exception):
    """Not an exception of the program: the program's handlers must not catch it during capture."""
