"""Every guard kind, natively, against the Python evaluator of the same data (`ir.guards`)."""

from __future__ import annotations

import collections
import gc
import itertools
import random
import subprocess
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from pycompiler import _native
from pycompiler.ir.computed_sources import (
    at_key,
    call_with_plain,
    fold_container,
    has_key,
    is_same_key,
    joined,
    overflows,
)
from pycompiler.ir.guards import GUARD_KINDS, Guard, TensorSpec, first_failure, global_state, holds
from pycompiler.ir.source import ACCESSORS, GLOBALS, Scope, Source, const_source, local
from tests.children import python

X = local("x")


def agree(guards: list[Guard], scope: Scope, names: tuple[str, ...] = ("x", "y")) -> bool:
    """Whether the guards hold; native and Python evaluators must agree."""
    tree = _native.GuardTree(guards, names)
    return agree_tree(tree, guards, scope)


def agree_tree(tree: _native.GuardTree, guards: list[Guard], scope: Scope) -> bool:
    got = tree.check(scope.locals, scope.globals)
    assert (got is None) == (first_failure(guards, scope) is None)
    if got is not None:
        assert not holds(guards[got], scope)
    return got is None


def test_tables_name_the_same_kinds() -> None:
    assert sorted(_native.guard_kinds()) == sorted(GUARD_KINDS)
    assert sorted(_native.accessors()) == sorted(ACCESSORS)


class Plain:
    klass = 1

    def method(self) -> int:
        return 1


class Slotted:
    __slots__ = ("a",)


class MyDict(dict[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("guards read the storage")


class MyList(list[Any]):
    def __len__(self) -> int:
        return 7


class Raises:
    def __eq__(self, other: object) -> bool:
        raise ValueError("no")

    def __bool__(self) -> bool:
        raise ValueError("no")

    def __len__(self) -> int:
        raise ValueError("no")

    __hash__ = object.__hash__


NAN = float("nan")
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**70, -(2**70), 0.0, -0.0, 1.0, NAN, -NAN, float("inf"), 1j, complex(NAN, -0.0),
    complex(NAN, 0.0), "", "a", "ab", b"", b"a", (), (1,), (True,), (1.0,), (0.0,), (-0.0,), (NAN,), (1, (2, "a")),
    [], [1], [True], [1, 2], {}, {"a": 1}, {1: 2}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {1: "a", "1": "b"},
    MyDict(a=1), MyList([1, 2]), collections.OrderedDict(a=1, b=2), set(), {1}, {1, 2}, frozenset({1}),
    frozenset({True}), {"a"}, Plain(), Plain, Slotted(), int, str, torch.float32, torch.device("cpu"),
    torch.Size([1, 2]), slice(1, 2), range(3), Raises(), types.CellType(), types.CellType(1), Plain().method, len,
    torch, object(), types.SimpleNamespace(a=1), type("T", (), {"a": 1}),
]  # fmt: skip

ARGS: dict[str, Callable[[Any], Any]] = {
    "type_is": type,
    "id_is": lambda v: v,
    "equals": lambda v: v,
    "length": lambda v: len(v) if isinstance(v, (tuple, list, dict, set)) else 1,
    "dict_keys": lambda v: tuple(v) if isinstance(v, dict) else (),
    "dict_contains": lambda v: next(iter(v)) if isinstance(v, dict) and v else "a",
    "dict_absent": lambda v: next(iter(v)) if isinstance(v, dict) and v else "a",
    "set_equals": lambda v: frozenset(v) if isinstance(v, (set, frozenset)) else frozenset({1}),
    "instance_absent": lambda v: "a",
    "class_absent": lambda v: "klass",
    "truth": lambda v: True,
    "cell_empty": lambda v: None,
}


@pytest.mark.parametrize("kind", sorted(ARGS))
def test_kind_on_all_pairs_of_values(kind: str) -> None:
    """A guard built from one value, checked on every other: over 60 x 60 pairs per kind."""
    held = failed = 0
    for seen in VALUES:
        guards = [Guard(kind, X, ARGS[kind](seen))]
        try:
            tree = _native.GuardTree(guards, ("x",))
        except (TypeError, ValueError):
            continue
        for now in VALUES:
            if agree_tree(tree, guards, Scope({"x": now}, {})):
                held += 1
            else:
                failed += 1
    assert held
    assert failed


def test_fake_tensors_of_all_pairs_of_devices() -> None:
    """A FakeTensor keeps the device that its program named: `cpu` and `cpu:0` are two devices."""
    with FakeTensorMode():
        fakes = [torch.ones(2, device=device) for device in ("cpu", "cpu:0", "cuda:0", "cuda:1", "meta:0")]
    for seen in fakes:
        guards = [Guard("tensor", X, TensorSpec.of(seen))]
        tree = _native.GuardTree(guards, ("x",))
        for now in fakes:
            assert agree_tree(tree, guards, Scope({"x": now}, {})) == (seen is now)


def test_instance_and_class_attributes() -> None:
    p = Plain()
    absent = [Guard("instance_absent", X, "extra"), Guard("class_absent", X.then("type"), "extra")]
    tree = _native.GuardTree(absent, ("x",))
    scope = Scope({"x": p}, {})
    assert agree_tree(tree, absent, scope)
    p.extra = 1  # type: ignore[attr-defined]
    assert not agree_tree(tree, absent, scope)
    del p.extra  # type: ignore[attr-defined]
    assert agree_tree(tree, absent, scope)
    Plain.extra = 1  # type: ignore[attr-defined]
    try:
        assert not agree_tree(tree, absent, scope)
    finally:
        del Plain.extra  # type: ignore[attr-defined]
    assert agree_tree(tree, absent, scope)
    vars(p)["extra"] = 1
    assert not agree_tree(tree, absent, scope)


def test_attributes_of_a_class_that_change_and_come_back() -> None:
    """One read of the class version stands for all guards on the class's attributes."""

    class Base:
        def g(self) -> None: ...

    class Other:
        def g(self) -> None: ...

    class Thing(Base):
        def f(self) -> None: ...

    f, g = Thing.__dict__["f"], Base.__dict__["g"]
    source = const_source(Thing)
    guards = [Guard("id_is", source.then("mro_lookup", "f"), f), Guard("class_absent", source, "h")]
    guards += [Guard("id_is", source.then("mro_lookup", "g"), weakref.ref(g))]
    tree = _native.GuardTree(guards, ["x"])

    def check(expected: int | None) -> None:
        for _ in range(2):
            assert tree.check({"x": 1}, {}) == expected == first_failure(guards, Scope({"x": 1}, {}))

    def change(do: Callable[[], object], undo: Callable[[], object], expected: int) -> None:
        check(None)
        do()
        check(expected)
        undo()
        check(None)

    change(lambda: setattr(Thing, "f", 3), lambda: setattr(Thing, "f", f), 0)
    change(lambda: delattr(Thing, "f"), lambda: setattr(Thing, "f", f), 0)
    change(lambda: setattr(Base, "g", f), lambda: setattr(Base, "g", g), 2)
    change(lambda: setattr(Thing, "g", f), lambda: delattr(Thing, "g"), 2)
    change(lambda: setattr(Base, "h", 1), lambda: delattr(Base, "h"), 1)
    change(lambda: setattr(Thing, "__bases__", (Other,)), lambda: setattr(Thing, "__bases__", (Base,)), 2)
    del Base.g, g
    assert tree.check({"x": 1}, {}) == 2


def test_a_state_that_was_plain_is_not_asked_about_again() -> None:
    asked: list[bool] = []

    def is_unusual() -> bool:
        asked.append(torch.is_grad_enabled() or torch._C._is_any_autocast_enabled())
        return asked[-1]

    unusual = _native.PlainState(is_unusual)
    with torch.no_grad():
        assert [unusual() for _ in range(3)] == [False] * 3
        assert len(asked) == 1
        with torch.autocast("cpu"):
            assert unusual()
        with torch.enable_grad():
            assert unusual()
        for enter in (
            lambda: torch.autograd.forward_ad.dual_level(),
            lambda: torch.utils._python_dispatch.TorchDispatchMode(),
        ):
            before = len(asked)
            with enter():
                unusual()
                assert len(asked) == before + 1
        before = len(asked)
        torch.func.vmap(lambda x: x if unusual() else x + 1)(torch.ones(2))
        assert len(asked) == before + 1


def test_state_is_read_natively_where_the_first_call_is_in_a_checkpoint() -> None:
    program = """
import torch, pycompiler
from pycompiler import _native
x = torch.ones(3, requires_grad=True)
torch.utils.checkpoint.checkpoint(pycompiler.compile(lambda x: x.sin(), backend="eager"), x, use_reentrant=False)
asked = []
unusual = _native.PlainState(lambda: asked.append(1))
print([unusual() for _ in range(3)], len(asked))
"""
    found = subprocess.run([python(), "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout == "[False, False, False] 1\n"


def test_id_is_by_weak_reference() -> None:
    p = Plain()
    guards = [Guard("id_is", X, weakref.ref(p))]
    tree = _native.GuardTree(guards, ("x",))
    assert tree.check({"x": p}, {}) is None
    assert tree.check({"x": Plain()}, {}) == 0
    del p
    assert all(tree.check({"x": Plain()}, {}) == 0 for _ in range(50))  # some are allocated at its address
    assert tree.check({"x": None}, {}) == 0


def test_free_function_parts() -> None:
    def outer(a: int = 1, *, k: int = 2) -> Callable[[], int]:
        def inner(b: int = 3, *, k: int = 4) -> int:
            return a + b + k

        return inner

    f: Any = outer()
    parts = ["code", "defaults", "kwdefaults", "closure", "func_globals"]
    names = ["__code__", "__defaults__", "__kwdefaults__", "__closure__", "__globals__"]
    guards = [Guard("id_is", X.then(p), getattr(f, n)) for p, n in zip(parts, names, strict=True)]
    guards.append(Guard("equals", X.then("defaults").item(0), 3))
    guards.append(Guard("equals", X.then("kwdefaults").dict_item("k"), 4))
    guards.append(Guard("equals", X.then("closure").item(0).then("cell"), 1))
    scope = Scope({"x": f}, {})
    tree = _native.GuardTree(guards, ("x",))
    assert agree_tree(tree, guards, scope)
    f.__defaults__ = (5,)
    assert not agree_tree(tree, guards, scope)
    g: Any = outer()
    assert not agree_tree(tree, guards, Scope({"x": g}, {}))
    f = outer()
    f.__code__ = g.__code__.replace(co_name="other")
    assert not agree_tree(tree, guards, Scope({"x": f}, {}))
    method = Plain().method
    guards = [
        Guard("id_is", X.then("method_self"), method.__self__),
        Guard("id_is", X.then("method_func"), method.__func__),
    ]
    assert agree(guards, Scope({"x": method}, {}))
    assert not agree(guards, Scope({"x": Plain().method}, {}))


ALIVE = Plain()
ALIVE.a = 5  # type: ignore[attr-defined]
READS: list[tuple[Source, Any]] = [
    (X.attr("a"), types.SimpleNamespace(a=5)),
    (X.then("instance_dict").dict_item("a"), types.SimpleNamespace(a=5)),
    (X.then("type").then("mro_lookup", "klass"), Plain()),
    (X.item(1), [4, 5]),
    (X.item(-1), (4, 5)),
    (X.item(1), collections.deque([4, 5])),
    (X.dict_item("a"), MyDict(a=5)),
    (X.dict_item(torch.float32), {torch.float32: 5}),
    (X.dict_item((1, 2)), {(1, 2): 5}),
    (X.then("dict_key_at", 1), {"a": 1, "b": 2}),
    (X.then("dict_key_at", 1), collections.OrderedDict(a=1, b=2)),
    (X.then("dict_value_at", 1), {"a": 1, "b": 5}),
    (X.then("dict_value_at", 1), MyDict(a=1, b=5)),
    (X.then("cell"), types.CellType(5)),
    (X.then("grad"), types.SimpleNamespace(grad=5)),
    (X.then("minus"), -5),
    (X.then("referent"), weakref.ref(Plain())),
    (X.then("referent").attr("a"), weakref.ref(ALIVE)),
    (GLOBALS.dict_item("g"), None),
    (const_source({"k": 5}).dict_item("k"), None),
]


@pytest.mark.parametrize(("source", "value"), READS, ids=[s.name for s, _ in READS])
def test_accessor(source: Source, value: Any) -> None:
    globals_ = {"g": 5}
    from pycompiler.ir.source import read

    want = read(source, Scope({"x": value}, globals_))
    guards = [Guard("equals", source, want)]
    assert agree(guards, Scope({"x": value}, globals_))
    for other in VALUES:  # an unreadable path, a value of another type
        agree(guards, Scope({"x": other}, {"g": other}))


def test_ordered_dict_order() -> None:
    d: collections.OrderedDict[str, int] = collections.OrderedDict(a=1, b=2)
    guards = [Guard("dict_keys", X, ("a", "b"))]
    tree = _native.GuardTree(guards, ("x",))
    assert agree_tree(tree, guards, Scope({"x": d}, {}))
    d.move_to_end("a")
    assert not agree_tree(tree, guards, Scope({"x": d}, {}))


def test_relations() -> None:
    y = local("y")
    a, b = torch.ones(2), torch.ones(2)
    distinct = [Guard("no_alias", X, None, (y,))]
    same = [Guard("same_object", X, None, (y,))]
    for scope in (Scope({"x": a, "y": b}, {}), Scope({"x": a, "y": a}, {}), Scope({"x": a}, {})):
        agree(distinct, scope)
        agree(same, scope)
    assert agree(distinct, Scope({"x": a, "y": b}, {}))
    assert not agree(distinct, Scope({"x": a, "y": a}, {}))
    tree = _native.GuardTree(distinct, ("x", "y"))
    for _ in range(3):  # repeated for the memo of the last good addresses
        assert agree_tree(tree, distinct, Scope({"x": a, "y": b}, {}))
        assert not agree_tree(tree, distinct, Scope({"x": b, "y": b}, {}))


def tensors() -> Iterator[torch.Tensor]:
    base = torch.zeros(4, 6)
    yield base
    yield torch.zeros(4, 6, dtype=torch.float64)
    yield torch.zeros(4, 6, requires_grad=True)
    yield torch.nn.Parameter(torch.zeros(4, 6))
    yield base.t()
    yield torch.zeros(6, 4)
    yield base[::2]
    yield base.view(24)
    yield base.reshape(2, 2, 2, 1, 3, 1, 1)
    yield torch.zeros(())
    yield torch.zeros(0, 3)
    yield torch.zeros(4, 6, device="meta")
    yield torch.zeros(4, 6, dtype=torch.complex64).conj()
    yield torch.zeros(4, 6, dtype=torch.complex64)
    yield torch.zeros(4, 6).to_sparse()
    with torch.inference_mode():
        yield torch.zeros(4, 6)


@pytest.fixture(params=["offsets", "c_abi", "slow"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    _native.force_tensor_level(request.param)
    yield request.param
    _native.force_tensor_level("offsets")


@pytest.mark.filterwarnings("ignore")
def test_tensor_on_all_pairs(level: str) -> None:
    all_tensors = list(tensors())
    for seen in all_tensors:
        guards = [Guard("tensor", X, TensorSpec.of(seen))]
        tree = _native.GuardTree(guards, ("x",))
        assert agree_tree(tree, guards, Scope({"x": seen}, {}))
        for now in [*all_tensors, None, 3]:
            assert agree_tree(tree, guards, Scope({"x": now}, {})) in (True, False)


def test_tensor_mutated_in_place(level: str) -> None:
    spec = TensorSpec.of(torch.zeros(4, 6))
    guards = [Guard("tensor", X, spec)]
    tree = _native.GuardTree(guards, ("x",))
    for change in (
        lambda t: t.resize_(3, 6),
        lambda t: t.requires_grad_(),
        lambda t: t.t_(),
        lambda t: setattr(t, "data", torch.zeros(4, 6, dtype=torch.float64)),
        lambda t: setattr(t, "data", torch.zeros(5, 6)),
        lambda t: t.unsqueeze_(0),
    ):
        t = torch.zeros(4, 6)
        assert agree_tree(tree, guards, Scope({"x": t}, {}))
        change(t)  # type: ignore[no-untyped-call]
        assert not agree_tree(tree, guards, Scope({"x": t}, {}))


def test_dynamic_dimensions(level: str) -> None:
    base = TensorSpec.of(torch.zeros(4, 6))
    spec = TensorSpec(base.cls, base.keys, base.dtype, base.device, False, (None, 6), (6, 1))
    guards = [Guard("tensor", X, spec)]
    tree = _native.GuardTree(guards, ("x",))
    assert agree_tree(tree, guards, Scope({"x": torch.zeros(9, 6)}, {}))
    assert not agree_tree(tree, guards, Scope({"x": torch.zeros(9, 7)}, {}))


class Sub(torch.Tensor):
    pass


def test_tensor_subclass(level: str) -> None:
    t = torch.zeros(2, 3).as_subclass(Sub)
    guards = [Guard("tensor", X, TensorSpec.of(t))]
    assert agree(guards, Scope({"x": t}, {}))
    assert not agree(guards, Scope({"x": torch.zeros(2, 3)}, {}))


def test_probe_found_the_offsets() -> None:
    probe = _native.tensor_probe()
    assert probe["level"] == "offsets"
    assert probe["state"] is True


STATES: list[Callable[[], Any]] = [
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    lambda: torch.autocast("cpu", dtype=torch.float16),
    lambda: torch.autocast("cpu", cache_enabled=False),
    lambda: torch.device("meta"),
    torch._C.DisableTorchFunctionSubclass,
    torch._C.DisableTorchFunction,
    lambda: torch.overrides.BaseTorchFunctionMode(),
]


@pytest.mark.parametrize("native", [True, False])
def test_global_state(native: bool) -> None:
    if not native:
        _native.force_tensor_level("slow")  # also takes the Python path for the state
    try:
        guards = [Guard("global_state", const_source(None), global_state())]
        tree = _native.GuardTree(guards, ())
        scope = Scope({}, {})
        for _ in range(2):
            assert agree_tree(tree, guards, scope)
            for state in STATES:
                with state():
                    assert not agree_tree(tree, guards, scope), state
                    inner = [Guard("global_state", const_source(None), global_state())]
                    other = _native.GuardTree(inner, ())
                    assert agree_tree(other, inner, scope)
                assert not agree_tree(other, inner, scope), state
            torch.set_default_dtype(torch.float64)
            assert not agree_tree(tree, guards, scope)
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(True, warn_only=True)
            assert not agree_tree(tree, guards, scope)
            torch.use_deterministic_algorithms(False)
            torch.set_default_device("meta")
            assert not agree_tree(tree, guards, scope)
            torch.set_default_device(None)
            assert agree_tree(tree, guards, scope)
    finally:
        _native.force_tensor_level("offsets")


def test_prefixes_are_shared() -> None:
    m = torch.nn.Linear(2, 2)
    d = X.then("instance_dict")
    one = [Guard("id_is", d.dict_item("training"), True)]
    two = [*one, Guard("type_is", local("x").then("instance_dict").dict_item("_parameters"), dict)]
    # one more read and one more check; the object and its dict are read once
    assert len(_native.GuardTree(two, ("x",))) == len(_native.GuardTree(one, ("x",))) + 2
    assert agree(two, Scope({"x": m}, {}))
    keys = [
        Guard("equals", X.dict_item(1), "int"),
        Guard("equals", X.dict_item(True), "int"),
        Guard("equals", X.dict_item("1"), "str"),
    ]
    assert agree(keys, Scope({"x": {1: "int", "1": "str"}}, {}))


def test_bad_data_is_refused() -> None:
    for guards, text in (
        ([Guard("no_such_kind", X)], "unknown guard kind"),
        ([Guard("equals", Source("no_such_root", None, None), 1)], "unknown root"),
        ([Guard("equals", Source("no_such_link", X, None), 1)], "unknown source kind"),
        ([Guard("equals", local("z"), 1)], "names the local 'z'"),
    ):
        with pytest.raises(ValueError, match=text):
            _native.GuardTree(guards, ("x",))


class Model:
    """A nest of every container, for random mutations."""

    def __init__(self, rng: random.Random, depth: int) -> None:
        self.flag = rng.random() < 0.5
        self.number = rng.randrange(3)
        self.items = [rng.randrange(3) for _ in range(rng.randrange(4))]
        self.table = {k: rng.randrange(3) for k in rng.sample("abcd", rng.randrange(4))}
        self.tensor = torch.zeros(rng.randrange(1, 3), 2)
        if depth:
            self.child = Model(rng, depth - 1)
            self.children = {i: Model(rng, depth - 1) for i in range(2)}

    def walk(self) -> Iterator[Model]:
        yield self
        if "child" in vars(self):
            for c in (self.child, *self.children.values()):
                yield from c.walk()


def guard_all(source: Source, value: Any, out: list[Guard]) -> None:
    out.append(Guard("type_is", source, type(value)))
    if isinstance(value, Model):
        d = source.then("instance_dict")
        out.append(Guard("dict_keys", d, tuple(vars(value))))
        out.append(Guard("class_absent", source.then("type"), "nothing"))
        for k, v in vars(value).items():
            guard_all(d.dict_item(k), v, out)
    elif isinstance(value, dict):
        out.append(Guard("dict_keys", source, tuple(value)))
        for k, v in value.items():
            guard_all(source.dict_item(k), v, out)
    elif isinstance(value, list):
        out.append(Guard("length", source, len(value)))
        for i, v in enumerate(value):
            guard_all(source.item(i), v, out)
    elif isinstance(value, torch.Tensor):
        out.append(Guard("tensor", source, TensorSpec.of(value)))
        out.append(Guard("id_is", source, weakref.ref(value)))
    else:
        out.append(Guard("equals", source, value))


def mutate(model: Model, rng: random.Random) -> None:
    m = rng.choice(list(model.walk()))
    kind = rng.randrange(12)
    if kind == 0:
        m.flag = not m.flag
    elif kind == 1:
        m.number = rng.choice([0, 1, 2, True, 1.0, m.number])
    elif kind == 2:
        m.items.append(1)
    elif kind == 3 and m.items:
        m.items[rng.randrange(len(m.items))] = rng.randrange(3)
    elif kind == 4:
        m.table[rng.choice("abcd")] = rng.randrange(3)
    elif kind == 5 and m.table:
        m.table.pop(next(iter(m.table)))
    elif kind == 6:
        m.tensor = torch.zeros(m.tensor.shape)
    elif kind == 7 and not m.tensor.requires_grad:
        m.tensor.resize_(rng.randrange(1, 3), 2)
    elif kind == 8:
        vars(m)[rng.choice(["flag", "new"])] = rng.random() < 0.5
    elif kind == 9:
        m.__dict__ = dict(m.__dict__)
    elif kind == 10 and m.table:
        k = next(iter(m.table))
        m.table[k] = m.table.pop(k)  # reorder
    elif kind == 11:
        m.tensor.requires_grad_(not m.tensor.requires_grad)


def test_random_mutations_agree_with_the_oracle() -> None:
    rng = random.Random(7)
    stale = held = 0
    for _ in range(40):
        model = Model(rng, 2)
        guards: list[Guard] = []
        guard_all(X, model, guards)
        tree = _native.GuardTree(guards, ("x",))
        scope = Scope({"x": model}, {})
        assert agree_tree(tree, guards, scope)
        for _ in range(12):
            mutate(model, rng)
            if agree_tree(tree, guards, scope):
                held += 1
            else:
                stale += 1
    assert held > 20
    assert stale > 100


class Evil:
    """An attribute whose read drops the objects on the guard's path."""

    def __init__(self, box: list[Any]) -> None:
        self.box = box

    @property
    def a(self) -> int:
        self.box.clear()
        return 5


def test_code_that_runs_during_a_check_may_drop_the_path() -> None:
    for _ in range(100):
        box: list[Any] = []
        box.append([Evil(box), [object()]])
        guards = [Guard("equals", X.item(0).item(0).attr("a"), 5), Guard("length", X.item(0).item(1), 1)]
        assert _native.GuardTree(guards, ("x",)).check({"x": box}, {}) in (None, 1)


class Interrupted:
    def __eq__(self, other: object) -> bool:
        raise KeyboardInterrupt

    __hash__ = object.__hash__


def test_an_interrupt_during_a_check_is_not_lost() -> None:
    tree = _native.GuardTree([Guard("equals", X, Interrupted())], ("x",))
    with pytest.raises(KeyboardInterrupt):
        for _ in range(2):
            assert tree.check({"x": Interrupted()}, {}) == 0
            for _ in range(10_000):
                pass


D, K = local("d"), local("k")
NESTED = const_source(format).computed(call_with_plain, K, const_source(""))
COMPUTED = [
    D.computed(has_key, K), D.computed(at_key, K), K.computed(is_same_key, const_source("a")), D.computed(has_key, NESTED),
    const_source("k/").computed(joined, NESTED), GLOBALS.dict_item("d").computed(has_key, D.attr("__doc__")),
    local("q").computed(overflows, const_source(1)), local("q").computed(fold_container, const_source(sum), const_source(1), const_source(0), const_source(0)),
]  # fmt: skip


class Missing(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        raise AssertionError("guards ask nobody")


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("source", COMPUTED, ids=str)
def test_what_is_computed_of_several_places(source: Source, fast: bool) -> None:
    _native.set_fast_guards(fast)
    try:
        for answer in (True, False, 1, "k/a", "k/1", 3):
            guards = [Guard("equals", source, answer), Guard("type_is", source, type(answer))]
            tree = _native.GuardTree(guards, ("d", "k", "q"))
            for d, k, q in itertools.product(
                [
                    {},
                    {"a": 1, 1: 3},
                    Missing(a=True),
                    collections.OrderedDict(a=False),
                    {"a", 2},
                    frozenset("ab"),
                    None,
                ],
                ["a", "b", 1, 2.0, True, None, 2**70, [], Same("a")],
                [collections.deque([1, 2, 3], maxlen=3), collections.deque([1, 2]), [1, 3], [], ["a"], None],
            ):
                agree_tree(tree, guards, Scope({"d": d, "k": k, "q": q}, {"d": d}))
    finally:
        _native.set_fast_guards(True)


class Same:
    """Has the hash of a string, and equals every object."""

    def __init__(self, like: str) -> None:
        self.like = like

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, other: object) -> bool:
        raise AssertionError("guards ask nobody")


def test_places_of_what_is_computed_are_checked() -> None:
    with pytest.raises(ValueError, match="'z'"):
        _native.GuardTree([Guard("equals", D.computed(has_key, local("z")), True)], ("d",))
    gone = [Guard("equals", D.computed(has_key, local("k").attr("zz")), True)]
    assert agree_tree(_native.GuardTree(gone, ("d", "k")), gone, Scope({"d": {}, "k": 1}, {})) is False


def test_what_is_computed_runs_while_the_program_drops_what_it_is_of() -> None:
    """A stored key with the same hash is compared; its `__eq__` may empty the dict and the frame."""
    held: dict[str, Any] = {}

    class Emptying:
        def __hash__(self) -> int:
            return hash("a")

        def __eq__(self, other: object) -> bool:
            held["d"].clear()
            held.clear()
            gc.collect()
            return False

    guards = [Guard("equals", D.computed(has_key, K), False), Guard("equals", D.computed(has_key, NESTED), False)]
    tree = _native.GuardTree(guards, ("d", "k"))
    for _ in range(3):
        held.update(d={Emptying(): [1]}, k="".join(["a"]))
        tree.check(held, {})
        gc.collect()
