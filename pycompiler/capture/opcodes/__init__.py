"""Handlers of opcodes, one file per family; importing this package fills `registry.HANDLERS`.

In: a frame under symbolic execution and an instruction.
Out: changes of the frame: its stack, variables and next instruction.

Files in reading order:

- registry.py: the opcode table, and opcodes that break the graph on purpose
- variables.py: local, global, cell and attribute access, and imports
- stack.py: operators, containers and stack operations
- truth.py: the truth of a jump's condition
- control.py: jumps, loops, calls, exceptions, `with` and generators
- matching.py: `match` statements
- class_namespace.py: class bodies and other code with a namespace
- dict_increments.py: counters in dicts, as one step
"""

from pycompiler.capture.opcodes import class_namespace, control, matching, stack, variables

FAMILIES = (control, matching, class_namespace, stack, variables)
