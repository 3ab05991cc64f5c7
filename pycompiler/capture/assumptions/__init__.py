"""Assumptions of a capture that guards alone do not cover, and guards over several objects.

In: the reads and writes that a capture records.  Out: guards, breaks, and checks before a backward.

Files in reading order:

- alias_guards.py: a written object must not be another object that the frame read
- list_guards.py: one guard for a long list of constants
- inherited_guards.py: guards for classes that each call creates
- custom_op_reads.py: objects that custom operators reach besides their arguments
- recompute_reads.py: places that checkpointed functions read
- recompute_checks.py: checks of these places before a backward
"""
