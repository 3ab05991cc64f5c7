"""torch's global state that captured code may change: how each part is read and written.

In: nothing but torch.  Out: `read_state`, `write_state`, by the names of `STATE`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pycompiler.torch_compat import torch_compile
from pycompiler.torch_compat.autocast_regions import autocast_nesting, step_nesting

NESTING = "autocast_nesting"
"""A count that graphs leave unchanged: no guard compares it, and the code after a graph steps it."""
# name -> (read the state, write it): all state that captured code may change.
STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "grad": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "autocast_cpu": (lambda: torch.is_autocast_enabled("cpu"), lambda v: torch.set_autocast_enabled("cpu", v)),
    "autocast_cuda": (lambda: torch.is_autocast_enabled("cuda"), lambda v: torch.set_autocast_enabled("cuda", v)),
    "autocast_cpu_dtype": (lambda: torch.get_autocast_dtype("cpu"), lambda v: torch.set_autocast_dtype("cpu", v)),
    "autocast_cuda_dtype": (lambda: torch.get_autocast_dtype("cuda"), lambda v: torch.set_autocast_dtype("cuda", v)),
    "autocast_cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    NESTING: (autocast_nesting, lambda n: step_nesting(n - autocast_nesting())),
}

# Backends that attention may use: name -> (read, write).
ATTENTION = {
    name: (getattr(torch._C, f"_get_{name}_sdp_enabled"), getattr(torch._C, f"_set_sdp_use_{name}"))
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    if hasattr(torch._C, f"_set_sdp_use_{name}")
}
STATE |= {f"attention_{name}": row for name, row in ATTENTION.items()}
PRIORITY = torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order
STATE["attention_priority"] = PRIORITY
STATE["deterministic"] = (
    lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
             torch_compile.deterministic()),
    torch_compile.set_deterministic,
)  # fmt: skip
STATE["default_dtype"] = torch.get_default_dtype, torch.set_default_dtype
NOT_RESTORED = {"deterministic", "default_dtype"}
"""State that none of torch's context managers restores when an error ends a graph."""
PROCESS_WIDE = {*(f"attention_{name}" for name in ATTENTION), "attention_priority", *NOT_RESTORED}
"""State shared by all threads; all other state is per thread."""


def read_state() -> dict[str, Any]:
    return {name: read() for name, (read, _) in STATE.items()}


def read_own_state() -> dict[str, Any]:
    """The state of this thread alone."""
    return {name: read() for name, (read, _) in STATE.items() if name not in PROCESS_WIDE}


def write_state(state: dict[str, Any]) -> None:
    for name, (read, write) in STATE.items():
        if name in state and read() != state[name]:
            write(state[name])


def restore_after_error(state: dict[str, Any]) -> None:
    """An error ends a graph that was called with `state`: restore the state that torch's context managers would restore."""
    write_state({name: value for name, value in state.items() if name not in NOT_RESTORED})
