"""Handlers of library functions, one module per family.  Importing this package fills `calls.BUILTINS`.

In: calls of the captured program.  Out: values, graph nodes, effects, or breaks.

Subpackages in reading order:

- standard: builtin functions and the standard library
- torch_functions: functions of torch that are more than an operator call
- gradients: torch's autograd
"""

from pycompiler.capture.arrays import error_state, random_arrays  # noqa: F401  (registers handlers)
from pycompiler.capture.library import gradients, standard, torch_functions  # noqa: F401  (registers handlers)
from pycompiler.capture.warnings import handlers  # noqa: F401  (registers handlers)
