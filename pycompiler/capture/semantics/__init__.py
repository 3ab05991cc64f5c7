"""Semantics: Python's operators, str conversions, exceptions and caches, applied to captured values.

In: values and the name of an operation.  Out: a value, or the exception that CPython raises.

Read in this order:

- `operators.py`: binary, comparison and unary operators.
- `special_methods.py`, `signatures.py`, `length_hints.py`: checks of results, arguments and length hints.
- `container_elements.py`: how containers are filled; set operations.
- `formatting.py`, `symbolic_formatting.py`: str, repr, format, `%`; the same for open values.
- `exception_groups.py`, `tracebacks.py`: `except*`, and tracebacks as in eager.
- `lru_cache_tables.py`, `lru_cache_calls.py`: functions under functools.lru_cache.
- `polyfills.py`, `heap_polyfills.py`, `torch_polyfills.py`: Python versions of C functions, for inlining.
"""
