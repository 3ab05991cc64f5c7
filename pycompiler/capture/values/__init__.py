"""Values: symbolic objects that stand for the program's Python objects while a frame is captured.

In: real objects with their sources, or results of captured operations.  Out: values that follow Python's data model,
record guards and side effects, and add nodes to the graph.

Read in this order:

- `base.py`: `Value`, the data model with its defaults, `LazyObject`, `Cell`.
- `interface.py`: `Capture`, the services that a value may use.
- `constant.py`: constants, ids, values known only in part.
- `attributes.py`: lookup in classes, descriptors, binding.
- `objects.py`, `classes.py`, `functions.py`: instances, classes and functions of the program.
- `containers/`: lists, tuples, dicts, sets and iterators.
- `tensor.py`, `array.py`: tensors and NumPy arrays.
- `symbolic_numbers.py`, `symbolic_indexing.py`: numbers over size symbols, and indexing by them.
- `deferred.py`: values that generated code computes after the graph.
- `exceptions.py`, `enum_members.py`, `decimals.py`: exceptions, enumerations, `Decimal`.
- `opaque.py`, `native_objects.py`, `distributed_objects.py`, `thread_locals.py`: objects of torch and of C extensions.
- `weak_references.py`, `finalizers.py`: weak references and `__del__`.
"""
