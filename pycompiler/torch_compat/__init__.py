"""Adaptations to torch, CPython and the process: fake tensors, tensor subclasses, torch's global state, signals, warnings.

In: torch as installed.  Out: the parts of torch that the stages use, without imports of torch.compile.
Files in reading order:

- fake_mode.py: fake tensor modes, and fakes of real tensors
- plain_sources.py: names of converted tensors
- tensor_subclasses.py: tensor subclasses as inner tensors and a spec
- distributed_tensors.py, jagged_tensors.py: two subclasses of torch
- dispatch_modes.py: the base class of our dispatch modes
- torch_state.py, autocast_regions.py: torch's global state
- torch_compile.py: coexistence with torch.compile
- warning_listener.py: warnings during a compile
- interrupts.py: signals during a compile
- process_settings.py: settings that compiles change, and locks
- program_builtins.py: the package's own builtins
"""
