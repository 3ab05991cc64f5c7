"""Containers: values that model lists, tuples, dicts, sets and iterators.

In: existing containers with their sources, or elements.  Out: values with the methods of Python's containers.

Read in this order:

- `sequences.py`: lists, tuples, deques, slices.
- `list_ends.py`: lists whose length is not guarded.
- `keys.py`: keys of dicts and sets, and their comparison.
- `dicts.py`: dicts and their views.
- `instance_dicts.py`: `__dict__` of objects and functions.
- `sets.py`: sets and their order.
- `iterators.py`: iterators and generators.
"""
