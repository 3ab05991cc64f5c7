"""What torch.compile has to know of us, and we of it, where one is used over the other.  Nothing of it is imported.

Where torch.compile is on in a thread, it looks at each frame that the thread runs: without a mark it would compile this
compiler.  What it made itself it marks with attributes, which are read here by name.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from typing import Any

import torch

DISABLED = "_torchdynamo_disable"
RECURSIVE = "_torchdynamo_disable_recursive"
REASON = "_torchdynamo_disable_msg"
ORIGINAL = "_torchdynamo_orig_callable"
WRAPPER = "_torchdynamo_wrapper_id"


def _strategy() -> Any:
    """(setter, strategy) that makes torch.compile skip frames of a code object and all that they call; None without it."""
    try:
        switches = importlib.import_module("torch._C._dynamo.eval_frame")
        skip = switches._FrameAction.SKIP
        return switches.set_code_exec_strategy, switches._FrameExecStrategy(skip, skip)
    except (ImportError, AttributeError):
        return None


_STRATEGY = _strategy()


def leave_alone(code: types.CodeType) -> types.CodeType:
    """torch.compile compiles neither frames of `code` nor what they call."""
    if _STRATEGY is not None:
        _STRATEGY[0](code, _STRATEGY[1])
    return code


def stands_for(made: Any, original: Any) -> None:
    """torch.compile of `made` is torch.compile of `original`."""
    setattr(made, ORIGINAL, original)
    setattr(made, WRAPPER, id(made))


def mark(target: Any, name: str) -> Any:
    """A mark of torch's on exactly this object (and not on what it wraps or is bound to), or None."""
    return inspect.getattr_static(target, name, None)


def is_disabled(target: Any) -> bool:
    """Whether torch.compiler.disable made, or marked, this function or module."""
    if is_module(target):
        target = target.__dict__.get("forward")
    return mark(target, DISABLED) is True


def deterministic() -> Any:
    """What `torch.use_deterministic_algorithms` has told torch.compile, which may be imported meanwhile."""
    return getattr(sys.modules.get("torch._inductor.config"), "deterministic", False)


def set_deterministic(state: tuple[bool, bool, Any]) -> None:
    """What `torch.use_deterministic_algorithms` keeps, torch.compile's part as it was told."""
    enabled, warn_only, told = state
    torch._C._set_deterministic_algorithms(enabled, warn_only=warn_only)
    if "torch._inductor.config" in sys.modules:
        sys.modules["torch._inductor.config"].deterministic = told  # type: ignore[attr-defined]


ITS_OWN = ("_init_group not supported", "don't trace into fused optimizer")
"""Why torch.compile, once it was used, disables parts of torch.optim: it cannot capture them."""


def is_disabled_for_itself(target: Any) -> bool:
    """Whether no program has disabled this function, but torch.compile, for reasons of its own."""
    return is_disabled(target) and str(mark(target, REASON)).endswith(ITS_OWN)


def is_module(target: Any) -> bool:
    """Whether torch.compile or torch.compiler.disable made this module around another one."""
    cls = type(target)
    return cls.__name__ == "OptimizedModule" and cls.__module__ == "torch._dynamo.eval_frame"


def is_module_call(function: types.FunctionType) -> bool:
    """Whether `function` is `__call__` of such modules."""
    return function.__qualname__ == "OptimizedModule.__call__" and function.__module__ == "torch._dynamo.eval_frame"


def original_of(target: Any) -> Any:
    """What torch.compile or torch.compiler.disable was given, if `target` is what it returned; else None."""
    if is_module(target):
        return target._orig_mod
    original = mark(target, ORIGINAL)
    return original if original is not None and mark(target, WRAPPER) in (None, id(target)) else None


def is_around_modules(function: types.FunctionType) -> bool:
    """Whether torch.compile, once it was used, put this around a method of all modules: it notes when they are made."""
    if function.__code__.co_freevars not in (("init",), ("setstate",)):
        return False
    return function.__code__.co_qualname.startswith("install_generation_tagging_init.<locals>.patched_")


def is_graph_break(target: Any) -> bool:
    """Whether this is `torch._dynamo.graph_break`."""
    return getattr(sys.modules.get("torch._dynamo.decorators"), "graph_break", None) is target


def errors_around(function: types.FunctionType) -> str | None:
    """Where torch's `error_on_graph_break` made this function around another one, its free variables being that one and the
    manager: the manager's attribute that says whether breaks are errors."""
    if function.__code__.co_freevars != ("func", "self") or function.__module__ != "torch._dynamo.external_utils":
        return None
    _, manager = function.__closure__ or ()
    cls = type(manager.cell_contents)
    known = cls.__name__ == "ErrorOnGraphBreakDecoratorContextManager" and cls.__module__ == "torch._dynamo.decorators"
    return "error_on_graph_break" if known else None


def is_disabled_call(code: types.CodeType) -> bool:
    """Whether frames of `code` are calls of what torch.compiler.disable returned (`fn`, its first free variable)."""
    known = code.co_name == "_fn" and code.co_filename.endswith(
        "eval_frame.py"
    )  # torch.compile has others of that name
    known |= code.co_name == "nonrecursive_disable_wrapper"
    return known and "_dynamo" in code.co_filename and code.co_freevars in (("fn",), ("fn", "self"))


def is_compile_call(code: types.CodeType) -> bool:
    """Whether frames of `code` are compiles of torch.compile's, around which it keeps torch's state."""
    return code.co_qualname == "preserve_global_state.<locals>._fn" and code.co_freevars == ("fn",)
