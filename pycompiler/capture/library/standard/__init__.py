"""Handlers of builtin functions, builtin classes and modules of the standard library.

In: calls of the program.
Out: values, effects, or breaks.  Importing this package registers the handlers of each of its modules.

Files in reading order:

- builtin_functions.py: Python's builtin functions
- numbers.py: the operator module and arithmetic
- containers.py: list, tuple, dict and set
- collections.py: deque, namedtuple and OrderedDict
- iteration.py: iterators, itertools, sorting and sums
- existing_iterators.py: iterators from before the frame
- exceptions.py: methods of exceptions
- copying.py: `copy.copy` and `copy.deepcopy`
- class_statements.py: class statements in a function
- class_stand_ins.py: the stand-in objects in such a class
- metaclasses.py: metaclasses and hooks of the program
- enum_classes.py: Enums created in a function
- frozen_dataclasses.py: frozen dataclasses as arguments of graph nodes
- eval_and_exec.py: `eval`, `exec` and `compile`
- native_objects.py: objects that the capture runs for real
- regular_expressions.py: the `re` module
- json_and_imports.py: `json` and `importlib`
- dates.py: strings of dates
- clocks.py: clocks, threads and processes
- random_numbers.py: the `random` module
- context_variables.py: context variables
- weak_references.py: weak references
"""

from pycompiler.capture.library.standard import (  # noqa: F401  (registers handlers)
    builtin_functions,
    class_stand_ins,
    class_statements,
    clocks,
    collections,
    containers,
    context_variables,
    copying,
    dates,
    eval_and_exec,
    exceptions,
    existing_iterators,
    frozen_dataclasses,
    iteration,
    json_and_imports,
    metaclasses,
    native_objects,
    numbers,
    random_numbers,
    regular_expressions,
    weak_references,
)
