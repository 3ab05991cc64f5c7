"""Handlers of functions of torch that are more than an operator call.

In: calls of the program.
Out: graph nodes, changes of state, effects, or breaks.  Importing this package registers the handlers of each of its
modules.

Files in reading order:

- torch_api.py: global state, queries and checks
- tensor_constructors.py: `torch.tensor` of changing numbers
- scalar_arguments.py: operators with a tensor in place of a number
- control_flow.py: `torch.cond`, `while_loop`, `scan` and `map`
- tensor_data.py: `tensor.data = other` and `set_`
- tensor_copies.py: copies of tensors
- storages.py: sizes and offsets of a tensor's memory
- random_generators.py: `torch.Generator` and seeds
- devices.py: default devices
- overrides.py: functions around `__torch_function__`
- module_hooks.py: hooks of modules
- optimizers.py: wrappers of torch.optim
- lr_schedulers.py: learning rate schedulers
- packed_sequences.py: packed sequences and `tensor_split`
- nested_tensors.py: jagged tensors
- flex_attention.py: `flex_attention`
- nested_regions.py: regions that the program marks
- shape_queries.py: `guard_or_false` and its kin, in inlined functions of torch
- profiler_ranges.py: profilers and ranges
- distributed.py: torch.distributed
- distributed_tensors.py: DTensor
"""

from pycompiler.capture.library.torch_functions import (  # noqa: F401  (registers handlers)
    control_flow,
    devices,
    distributed,
    distributed_tensors,
    flex_attention,
    lr_schedulers,
    module_hooks,
    nested_regions,
    nested_tensors,
    optimizers,
    overrides,
    packed_sequences,
    profiler_ranges,
    random_generators,
    scalar_arguments,
    shape_queries,
    storages,
    tensor_copies,
    tensor_data,
    torch_api,
)
