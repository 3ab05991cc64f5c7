"""Compiles shared by equal captured graphs, such as the blocks of a model, each of which is a frame of its own.

In: a graph, its example inputs, and `build`, which creates a callable of the graph's inputs.  Out: the callable of an
earlier graph with the same key if it is still alive, else the newly built one.

Example: six compiled blocks of one class are captured six times, with guards of their own.  They are lowered, scheduled
and built once, forward and backward.

The key (`key_of`) contains all that a compile reads: the graph's operators with their constants and the program's lines
(errors name them), metadata of each value, inputs that share memory, facts about symbols, torch's state and the knobs.
Names of inputs are not part of it: the entry knows their sources.  A graph that cannot be described in this way is not shared.
"""

from __future__ import annotations

import copy
import operator
import os
import types
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor

from pycompiler import _native, config
from pycompiler.ir import choices
from pycompiler.ir.guards import global_state, own_place
from pycompiler.ir.higher_order import Pullback
from pycompiler.ir.nested_regions import REGION
from pycompiler.ir.node_effects import effects_of
from pycompiler.ir.persistent_names import traced_through
from pycompiler.logs import stage
from pycompiler.operators.kernel_type_checks import memory_of
from pycompiler.operators.registered_kernels import replaced
from pycompiler.symbolic.symbols import Relation, Symbols, symbols_of
from pycompiler.torch_compat.fake_mode import is_inference

log = stage("dynamo")

RegionCompiler = Callable[..., Callable[..., Any]]  # compiler of one ATen graph
Build = Callable[[RegionCompiler], Callable[..., Any]]

STATISTICS = {"shared": 0, "built": 0}


class NotShareable(Exception):
    """The graph contains something without a description, so it is compiled alone."""


# keys ---------------------------------------------------------------------------------------------------------
def key_of(gm: fx.GraphModule, examples: Sequence[Any]) -> Hashable:
    """All that a compile of the graph reads.  Raises `NotShareable`."""
    memories: dict[int, int] = {}
    first = {id(e): i for i, e in reversed(list(enumerate(examples)))}
    given = tuple((first[id(e)], _value(e, memories)) for e in examples)
    symbols = symbols_among(examples)
    return (
        _graph(gm, {}), given, global_state(), _flags(), _operators(), replaced(), repr(config.snapshot()),
        None if symbols is None else repr(symbols.state()),
    )  # fmt: skip


def _flags() -> tuple[Any, ...]:
    """State that affects the choice of torch's kernels, or the compiler, and that calls do not compare."""
    return (
        *(f() for f in (torch._C._get_cudnn_enabled, torch._C._get_mkldnn_enabled, torch._C._get_cudnn_deterministic)),
        *(os.environ.get(name) for name in ("CXX", "PATH")),
    )


def _operators() -> tuple[Any, ...]:
    """The current functions of Python's operators on tensors: a program may have replaced one."""
    return tuple(_called(getattr(torch.Tensor, name, None), name) for name in _METHODS)


def _graph(gm: fx.GraphModule, memories: dict[int, int]) -> Hashable:
    place = {node: i for i, node in enumerate(gm.graph.nodes)}
    return tuple(_node(gm, node, place, memories) for node in place)


def _node(gm: fx.GraphModule, node: fx.Node, place: Mapping[fx.Node, int], memories: dict[int, int]) -> Hashable:
    made = node.meta.get("example_value")
    if node.op == "get_attr":
        if not isinstance(made, fx.GraphModule):  # a tensor
            raise NotShareable(f"it holds {node.target}")
        return "body", _graph(made, {})
    if node.op == "placeholder":
        return "input", _value(made, memories)
    if node.op == "output":
        return "output", _argument(node.args, place)
    user = node.meta.get("user")
    return (
        node.op, _target(node), _argument(node.args, place), _argument(node.kwargs, place), _metadata(made),
        repr(node.meta.get("strides")), bool(effects_of(node).mutates), effects_of(node).acts,
        own_place(user) if user else node.meta.get("stack_trace"), node.meta.get(REGION),
    )  # fmt: skip


_TARGETS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, type, OpOverload,
    OpOverloadPacket,
)  # fmt: skip


def _target(node: fx.Node) -> Hashable:
    """The very function; for a method, its name and its current function in torch.Tensor."""
    name = node.target if isinstance(node.target, str) else None
    target = node.target if name is None else getattr(torch.Tensor, name, None)
    _called(target, node.target)
    if (traced := traced_through(target)) is not None:
        raise NotShareable(f"it holds the operators that {traced} ran when it was traced")
    return name, target


_OPERATORS = [name.strip("_") for name in operator.__all__]
_METHODS = [
    m for n in _OPERATORS for m in (f"__{n}__", f"__r{n}__") if any(m in c.__dict__ for c in torch.Tensor.__mro__)
]


def _called(target: Any, name: Any) -> Any:
    """`target`, if it is the same function in every later graph; else raises `NotShareable`."""
    if type(target) not in _TARGETS or not _is_torchs(getattr(target, "__self__", None)):
        raise NotShareable(f"it calls {name!r}")
    return target


def _is_torchs(owner: Any) -> bool:
    """Whether a builtin function belongs to no object of the program, such as a class with rules for gradients."""
    return owner is None or isinstance(owner, types.ModuleType) or (
        isinstance(owner, type) and owner.__module__.partition(".")[0] == "torch"
    )  # fmt: skip


_PLAIN = (int, bool, str, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _argument(value: Any, place: Mapping[fx.Node, int]) -> Hashable:
    kind = type(value)
    if kind is fx.Node:
        return "node", place[value]
    if kind in _PLAIN:
        return kind, value
    if kind in (float, complex):
        return kind, repr(value)
    if isinstance(value, (tuple, list)):
        return kind, *(_argument(v, place) for v in value)
    if isinstance(value, dict):
        return kind, *((_argument(k, place), _argument(v, place)) for k, v in value.items())
    if kind is slice:
        return kind, *(_argument(v, place) for v in (value.start, value.stop, value.step))
    return _number(value)


def _number(value: Any) -> Hashable:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and symbols_of(value) is not None:
        return type(value), str(value)
    raise NotShareable(f"it has {type(value).__name__}")


def _value(value: Any, memories: dict[int, int]) -> Hashable:
    """Metadata of an input, with the number of its memory among `memories`, which shows shared memory."""
    if not isinstance(value, torch.Tensor):
        return _argument(value, {})
    return (
        _metadata(value), value.storage_offset() if type(value.storage_offset()) is int else str(value.storage_offset()),
        torch._C._dispatch_keys(value).raw_repr(), value.requires_grad, _is_leaf(value), is_inference(value),
        None if value.is_inference() else value._version, value.is_conj(), value.is_neg(), value._is_view(),
        getattr(value, "_is_param", False), memories.setdefault(memory_of(value), len(memories)),
    )  # fmt: skip


def _is_leaf(value: torch.Tensor) -> bool | None:
    """Whether a tensor is a leaf; None in inference mode for a view with a history, where torch refuses the query."""
    asked = not (torch.is_inference_mode_enabled() and value._is_view() and value.requires_grad)
    return value.is_leaf if asked else None


def _metadata(value: Any) -> Hashable:
    """Sizes, strides and types of a call's result; the rest follows from its arguments."""
    if isinstance(value, (tuple, list)):
        return type(value), *map(_metadata, value)
    if type(value) is Pullback:
        return "pullback"
    if not isinstance(value, torch.Tensor):
        return _argument(value, {})
    if type(value) is not FakeTensor or value.layout is not torch.strided:
        raise NotShareable(f"it has a {type(value).__name__}")
    return (
        tuple(n if type(n) is int else str(n) for n in (*value.shape, "", *value.stride())),
        value.dtype,
        value.device,
    )


# symbols ------------------------------------------------------------------------------------------------------
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def symbols_among(examples: Sequence[Any]) -> Symbols | None:
    return next((s for e in examples if isinstance(e, _SYMBOLIC) and (s := symbols_of(e)) is not None), None)


class _Assumptions:
    """Assumptions of a compile about symbols, to be repeated for other symbols with the same facts."""

    def __init__(self, symbols: Symbols | None) -> None:
        self.symbols = symbols
        self.relations: list[Relation] = []
        if symbols is not None:
            self.before = copy.copy(symbols)
            vars(self.before).update({name: copy.copy(value) for name, value in vars(symbols).items()})

    def found(self) -> bool:
        """Record the assumptions made since; returns whether they explain all facts known now."""
        if self.symbols is None:
            return True
        self.relations = self.symbols.assumed[len(self.before.assumed) :]
        self.repeat(self.before)
        known, self.symbols = repr(self.before.state()) == repr(self.symbols.state()), None
        del self.before
        return known

    def repeat(self, symbols: Symbols | None) -> None:
        for relation in self.relations:
            assert symbols is not None
            symbols.assume(relation)


# shared compiles ----------------------------------------------------------------------------------------------
_regions: dict[Hashable, Region] = {}


class Region:
    """A compile that may be shared."""

    def __init__(self, key: Hashable, symbols: Symbols | None) -> None:
        self.key = key
        self.whole = True  # all its graphs were compiled so far
        self.run: Callable[[], Callable[..., Any] | None] = lambda: None
        self.assumptions = _Assumptions(symbols)

    def keep(self, run: Callable[..., Any]) -> None:
        """Let equal graphs find this compile, as long as `run` is alive."""
        if self.whole and self.assumptions.found() and not isinstance(run, types.MethodType):
            self.run = weakref.ref(run, self.forget)
            _regions[self.key] = self

    def forget(self, _: object = None, regions: dict[Hashable, Region] = _regions) -> None:
        """`regions` is an argument, since the module's variables are gone at interpreter shutdown."""
        if regions.get(self.key) is self:
            del regions[self.key]


class FailureAwareCompiler:
    """`compile`, whose failures are not shared: the next equal graph tries again."""

    def __init__(self, compile: RegionCompiler, region: Region) -> None:
        self.compile, self.region = compile, region

    def __call__(self, *args: Any) -> Callable[..., Any]:
        made = self.compile(*args)
        if not isinstance(made, _native.Plan):
            self.region.whole = False
            self.region.forget()
        return made


def _place(gm: fx.GraphModule) -> str:
    """The program's line of the last operator."""
    users = [n.meta["user"] for n in gm.graph.nodes if n.meta.get("user")]
    return f"a graph of {len(gm.graph.nodes)} nodes{f' to {own_place(users[-1])}' if users else ''}"


def shared(
    gm: fx.GraphModule, examples: Sequence[Any], compile: RegionCompiler, build: Build, *more: Hashable
) -> Callable[..., Sequence[Any]]:
    """The result of `build(compile)` for the graph, or the earlier result for an equal graph; `more` is part of the key."""
    if not config.share_regions:
        return build(compile)
    try:
        key = (key_of(gm, examples), *more)
    except NotShareable as reason:
        log.debug("a graph is compiled separately: %s", reason)
        return build(compile)
    symbols, found = symbols_among(examples), _regions.get(key)
    run = None if found is None else found.run()
    if found is not None and run is not None and choices.step_enabled("region", lambda: _place(gm)):
        found.assumptions.repeat(symbols)
        STATISTICS["shared"] += 1
        log.info("a graph of %d nodes runs the code of an equal compiled graph", len(gm.graph.nodes))
        return run
    region = Region(key, symbols)
    run = build(FailureAwareCompiler(compile, region))
    STATISTICS["built"] += 1
    region.keep(run)
    return run
