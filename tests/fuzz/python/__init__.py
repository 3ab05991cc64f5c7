"""The program fuzzer: random Python programs, as people write them, eager and compiled, compared in all that can be seen.

`grammar.py` writes programs from the rows of `rows.py` and `classes.py`; `check.py` runs one and says what differs
(`observe.py` is what can be seen); `reduce.py` cuts a failing one down. `__main__.py` is the command.
"""
