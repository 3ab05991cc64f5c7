"""The program fuzzer: random Python programs, as people write them, compared eager and compiled in all observable
state.

`grammar.py` writes programs from the rows of `rows.py` and `classes.py`; `check.py` runs one and reports the
difference (`observe.py` defines the observable state); `reduce.py` reduces a failing program. `__main__.py` is the
command.
"""
