"""What leaves a stage of a compile, to begin it anew or to end it."""


class Leaves(Exception):
    """No exception of the program's: its handlers do not see it."""
