"""Side effects: writes of the captured program to existing objects, recorded for a later replay.

In: writes during capture.  Out: a journal in program order, and the checks that the replay needs.

Read in this order:

- `side_effects.py`: `Effects`, the journal of writes.
- `attribute_dicts.py`: dicts that are also the attributes of an object or a module.
- `input_memory.py`: memory of inputs, and in-place writes to it.
- `data_swaps.py`: tensors whose data were replaced.
- `log_records.py`: calls of `logging`.
"""
