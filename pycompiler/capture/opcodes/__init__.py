"""Handlers of opcodes, one file a family; importing this package fills `registry.HANDLERS`."""

from pycompiler.capture.opcodes import control, matching, names, stack, variables

FAMILIES = (control, matching, names, stack, variables)
