"""Handlers of opcodes, one file a family; importing this package fills `registry.HANDLERS`."""

from pycompiler.capture.opcodes import control, stack, variables

FAMILIES = (control, stack, variables)
