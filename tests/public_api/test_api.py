"""The public names: a compiled object looks and behaves like the original, and serving is under control."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import logging
import operator
import pickle
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler import config, exc

X = torch.arange(4.0)


def compiles(fn: Any) -> int:
    return pycompiler.counters(fn)["compiles"]


@pytest.fixture
def graphs() -> Iterator[Any]:
    """A backend that counts its graphs."""
    seen: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    backend.seen = seen  # type: ignore[attr-defined]
    yield backend


def add(x: Any, y: Any = 2, /, *rest: Any, z: Any = 3, **more: Any) -> Any:
    """Adds."""
    return x + y + z + len(rest) + len(more)


# functions -----------------------------------------------------------------------------------------------------
@pytest.mark.captures_nothing("the looks of a compiled function, which is not called")
def test_function_keeps_its_looks() -> None:
    made = pycompiler.compile(add, backend="eager")
    assert (made.__name__, made.__qualname__, made.__doc__, made.__module__) == ("add", "add", "Adds.", __name__)
    assert inspect.signature(made) == inspect.signature(add)
    assert made.__defaults__ == (2,)
    assert made.__kwdefaults__ == {"z": 3}
    assert made._orig_mod is add
    assert inspect.unwrap(made) is add
    assert callable(made)


@pytest.mark.parametrize("args, kwargs", [((X,), {}), ((X, 1), {}), ((X, 1, 2, 3), {"z": 1}), ((X,), {"q": 1, "r": 2})])
def test_argument_forms(args: Any, kwargs: Any) -> None:
    assert torch.equal(pycompiler.compile(add, backend="eager")(*args, **kwargs), add(*args, **kwargs))


@pytest.mark.parametrize("args, kwargs", [((), {}), ((), {"x": X})])
@pytest.mark.captures_nothing("arguments that do not bind raise before a compile")
def test_wrong_call_raises_what_python_raises(args: Any, kwargs: Any) -> None:
    def fn(x: Any, /) -> Any:
        return x

    with pytest.raises(TypeError) as want:
        fn(*args, **kwargs)
    with pytest.raises(TypeError) as have:
        pycompiler.compile(fn, backend="eager")(*args, **kwargs)
    assert str(have.value) == str(want.value)


def test_decorator_forms(graphs: Any) -> None:
    @pycompiler.compile
    def plain(x: Any) -> Any:
        return x + 1

    @pycompiler.compile(backend=graphs, fullgraph=True)
    def called(x: Any) -> Any:
        return x + 2

    assert torch.equal(plain(X), X + 1)
    assert torch.equal(called(X), X + 2)
    assert called.__name__ == "called"
    assert len(graphs.seen) == 1
    with pytest.raises(exc.ArgumentError, match="got None"):
        pycompiler.compile(backend="eager")(None)


class Methods:
    scale = 3.0

    def __init__(self) -> None:
        self.bias = 1.0

    @pycompiler.compile(backend="eager")
    def method(self, x: Any) -> Any:
        return x * self.scale + self.bias

    @staticmethod
    @pycompiler.compile(backend="eager")
    def static_inside(x: Any) -> Any:
        return x + 5

    @pycompiler.compile(backend="eager")
    @staticmethod
    def static_outside(x: Any) -> Any:
        return x + 6

    @classmethod
    @pycompiler.compile(backend="eager")
    def of_class(cls, x: Any) -> Any:
        return x * cls.scale

    @pycompiler.compile(backend="eager")
    @classmethod
    def of_class_outside(cls, x: Any) -> Any:
        return x * cls.scale

    def plain(self, x: Any) -> Any:
        return x - self.bias


def test_methods() -> None:
    m = Methods()
    assert torch.equal(m.method(X), X * 3 + 1)
    assert torch.equal(Methods.method(m, X), X * 3 + 1)
    assert torch.equal(m.static_inside(X), X + 5)
    assert torch.equal(m.static_outside(X), X + 6)
    assert torch.equal(m.of_class(X), X * 3)
    assert torch.equal(Methods.of_class_outside(X), X * 3)
    bound = pycompiler.compile(m.plain, backend="eager")
    assert bound.__self__ is m
    assert bound.__name__ == "plain"
    assert torch.equal(bound(X), X - 1)
    m.bias = 2.0
    assert torch.equal(bound(X), X - 2)
    assert compiles(bound) == 2
    assert torch.equal(m.method(X), X * 3 + 2)


class Callable_:
    def __call__(self, x: Any, n: int = 2) -> Any:
        return x * n


@pytest.mark.parametrize(
    "target, want",
    [
        (functools.partial(torch.add, alpha=2), lambda x: torch.add(x, x, alpha=2)),
        (Callable_(), lambda x: None),
        (torch.sin, torch.sin),
        (operator.neg, operator.neg),
        (torch.Tensor.cos, torch.Tensor.cos),
    ],
    ids=["partial", "object", "torch", "operator", "descriptor"],
)
def test_callables_without_a_frame(target: Any, want: Any) -> None:
    made = pycompiler.compile(target, backend="eager")
    args = (X, X) if isinstance(target, functools.partial) else (X,)
    expected = target(*args)
    assert torch.equal(made(*args), expected)
    assert torch.equal(made(*args), expected)
    assert compiles(made) == 1


def test_classes_are_compiled_in_place() -> None:
    class Scale:
        def __call__(self, x: Any) -> Any:
            return x * 2

    assert pycompiler.compile(Scale, backend="eager") is Scale
    assert torch.equal(Scale()(X), X * 2)
    assert pycompiler.counters(Scale)["compiles"] == 1


@pycompiler.compile(backend="eager")
class Decorated(nn.Module):
    def forward(self, x: Any, *, by: int = 2) -> Any:
        return x * by


class OfDecorated(Decorated):
    def forward(self, x: Any, *, by: int = 2) -> Any:
        return super().forward(x, by=by) + 1


class CallsDecorated(Decorated):
    def __call__(self, x: Any, **kwargs: Any) -> Any:
        return super().__call__(x, **kwargs) + 1


@pytest.mark.parametrize("cls, add", [(Decorated, 0), (OfDecorated, 1), (CallsDecorated, 1)])
def test_instances_of_a_compiled_module_class(cls: type[nn.Module], add: int) -> None:
    pycompiler.reset()
    plain = cls()
    assert torch.equal(plain(X), X * 2 + add)
    assert compiles(Decorated) == 1
    assert type(pickle.loads(pickle.dumps(plain))) is cls
    made = pycompiler.compile(plain, backend="eager", fullgraph=True)
    for module in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert isinstance(module, cls)
        assert torch.equal(module(X), X * 2 + add)
        assert torch.equal(module(X, by=3), X * 3 + add)
    assert compiles(made) == 2
    assert torch.equal(pycompiler.disable(plain)(X), X * 2 + add)


def test_a_subclass_of_a_compiled_class_is_compiled_by_its_own_family(graphs: Any) -> None:
    @pycompiler.compile(backend=graphs)
    class Own(Decorated):
        pass

    pycompiler.reset()
    assert torch.equal(Own()(X), X * 2)
    assert (compiles(Own), compiles(Decorated), len(graphs.seen)) == (1, 0, 1)


def test_a_module_whose_call_is_no_function() -> None:
    class Partial(nn.Module):
        def scaled(self, x: Any, by: int) -> Any:
            return x * by

        __call__ = functools.partialmethod(scaled, by=3)  # type: ignore[assignment]

    made = pycompiler.compile(Partial(), backend="eager")
    assert torch.equal(made(X), X * 3)
    assert torch.equal(made(X), X * 3)
    assert (compiles(made), pycompiler.counters(made)["hits"]) == (1, 1)


@pytest.mark.parametrize("kind", ["generator", "coroutine"])
@pytest.mark.captures_nothing("generator and coroutine functions run eagerly")
def test_generators_and_coroutines_run_eagerly(kind: str) -> None:
    def generator(x: Any) -> Any:
        yield x + 1

    async def coroutine(x: Any) -> Any:
        return x + 1

    if kind == "generator":
        result = list(pycompiler.compile(generator, backend="eager")(X))[0]
    else:
        pending = pycompiler.compile(coroutine, backend="eager")(X)
        with pytest.raises(StopIteration) as stop:
            pending.send(None)
        result = stop.value.value
    assert torch.equal(result, X + 1)


def test_compile_of_compiled_is_compile_of_the_original(graphs: Any) -> None:
    first = pycompiler.compile(add, backend="eager")
    second = pycompiler.compile(first, backend=graphs)
    assert second._orig_mod is add
    assert torch.equal(second(X), add(X))
    assert (compiles(first), compiles(second), len(graphs.seen)) == (0, 1, 1)


def test_compiled_called_by_compiled_is_one_graph(graphs: Any) -> None:
    inner = pycompiler.compile(lambda x: x.sin(), backend="eager")

    def outer(x: Any) -> Any:
        return inner(x) + 1

    made = pycompiler.compile(outer, backend=graphs, fullgraph=True)
    assert torch.equal(made(X), X.sin() + 1)
    assert (len(graphs.seen), compiles(inner)) == (1, 0)


def test_compiled_callable_returned_by_a_compiled_function() -> None:
    inner = pycompiler.compile(add, backend="eager")

    def outer(x: Any) -> Any:
        return x + 1, inner

    assert pycompiler.compile(outer, backend="eager")(X)[1] is inner


# modules -------------------------------------------------------------------------------------------------------
class Net(nn.Module):
    """A net."""

    registered: list[type] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        Net.registered.append(cls)

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.gain = 2.0

    def forward(self, x: Any, *, shift: float = 0.0) -> Any:
        return self.norm(self.linear(x)) * self.gain + shift

    def helper(self) -> str:
        return "helped"


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


BATCH = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.captures_nothing("the looks of a compiled module, which is not called")
def test_module_looks_like_its_original(net: Net) -> None:
    made = pycompiler.compile(net, backend="eager")
    assert isinstance(made, Net)
    assert isinstance(made, nn.Module)
    assert made._orig_mod is net
    assert list(made.state_dict()) == list(net.state_dict())
    assert not any("_orig_mod" in name for name, _ in [*made.named_parameters(), *made.named_modules()])
    assert [id(p) for p in made.parameters()] == [id(p) for p in net.parameters()]
    assert (type(made).__name__, type(made).__module__, made.__doc__) == ("Net", __name__, "A net.")
    assert repr(made) == repr(net)
    assert inspect.signature(made) == inspect.signature(net.forward) == inspect.signature(made.forward)
    assert made.helper() == "helped"
    assert made.gain == 2.0
    assert Net.registered == []  # the wrapper's class is no class of the user


@pytest.mark.captures_nothing("the state of a compiled module, which is not called")
def test_module_shares_all_state(net: Net) -> None:
    made = pycompiler.compile(net, backend="eager")
    made.gain = 5.0
    assert net.gain == 5.0
    net.extra = "set later"
    assert made.extra == "set later"
    assert made.eval() is made
    assert net.training is False
    assert made.train().training
    assert net.training
    assert made.to(torch.float64) is made
    assert net.linear.weight.dtype is torch.float64
    made.load_state_dict(net.state_dict())
    made.requires_grad_(False)
    assert not net.linear.weight.requires_grad
    made.zero_grad()
    del made.extra
    assert not hasattr(net, "extra")


def test_module_values_modes_and_gradients(net: Net) -> None:
    twin = copy.deepcopy(net)
    made = pycompiler.compile(net, backend="eager")
    for step in range(3):
        made.train(step != 1)
        twin.train(step != 1)
        have, want = made(BATCH, shift=1.0), twin(BATCH, shift=1.0)
        torch.testing.assert_close(have, want)
        have.sum().backward()
        want.sum().backward()
    for (name, p), q in zip(made.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)
    torch.testing.assert_close(net.norm.running_mean, twin.norm.running_mean)
    assert compiles(made) == 2  # train and eval


@pytest.mark.parametrize("kind", ["forward", "pre", "full_backward"])
def test_module_hooks(net: Net, kind: str) -> None:
    made = pycompiler.compile(net, backend="eager")
    made(BATCH)
    seen: list[str] = []
    handle = {
        "forward": lambda: made.register_forward_hook(lambda m, a, out: out * 2),
        "pre": lambda: net.register_forward_pre_hook(lambda m, a: (a[0] * 2,)),
        "full_backward": lambda: net.register_full_backward_hook(lambda m, gi, go: seen.append("called")),
    }[kind]()
    twin = copy.deepcopy(net) if kind != "full_backward" else None
    have = made(BATCH)
    if twin is not None:
        torch.testing.assert_close(have, twin(BATCH))
    else:
        have.sum().backward()
        assert seen == ["called"]
    handle.remove()
    net.eval()
    torch.testing.assert_close(made(BATCH), net(BATCH))


def test_module_pickle_gives_the_original_class(net: Net) -> None:
    made = pycompiler.compile(net, backend="eager")
    made(BATCH)
    loaded = pickle.loads(pickle.dumps(made))
    assert type(loaded) is Net
    torch.testing.assert_close(loaded.eval()(BATCH), net.eval()(BATCH))
    assert b"pycompiler" not in pickle.dumps(made)
    assert type(pickle.loads(pickle.dumps(net))) is Net


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_module_copies_are_compiled_and_apart(net: Net, how: Callable[[Any], Any]) -> None:
    made = pycompiler.compile(net.eval(), backend="eager")
    made(BATCH)
    other = how(made)
    assert isinstance(other, Net)
    assert other._orig_mod is not net
    torch.testing.assert_close(other(BATCH), net(BATCH))
    assert (compiles(made), compiles(other)) == (1, 1)
    other.gain = 7.0
    assert made.gain == 2.0


def test_compiled_submodule_in_models_and_copies(net: Net, graphs: Any) -> None:
    model = nn.Sequential(net, nn.ReLU()).eval()
    want = model(BATCH)
    model[0] = pycompiler.compile(net, backend="eager")
    assert sorted(model.state_dict())[0] == "0.linear.bias"
    torch.testing.assert_close(model(BATCH), want)
    assert compiles(model[0]) == 1
    torch.testing.assert_close(copy.deepcopy(model)(BATCH), want)
    made = pycompiler.compile(model, backend=graphs, fullgraph=True)
    torch.testing.assert_close(made(BATCH), want)
    assert len(graphs.seen) == 1


def test_module_forward_through_the_wrapper_is_compiled(net: Net, graphs: Any) -> None:
    made = pycompiler.compile(net.eval(), backend=graphs)
    torch.testing.assert_close(made.forward(BATCH), net(BATCH))
    assert len(graphs.seen) == 1


def test_module_with_slots() -> None:
    class Slotted(nn.Module):
        __slots__ = ("scale",)

        def __init__(self) -> None:
            super().__init__()
            self.scale = 3.0

        def forward(self, x: Any) -> Any:
            return x * self.scale

    module = Slotted()
    made = pycompiler.compile(module, backend="eager")
    assert torch.equal(made(X), X * 3)
    made.scale = 4.0
    assert module.scale == 4.0
    assert torch.equal(made(X), X * 4)


# arguments of compile ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"backend": "nonsense"}, ["'nonsense'", "native", "aot_eager"]),
        ({"backend": 3}, ["3", "callable"]),
        ({"mode": "fast"}, ["'fast'", "reduce-overhead", "max-autotune"]),
        ({"mode": "default", "options": {}}, ["mode", "options", "not both"]),
        ({"options": {"epilog_fusion": True}}, ["'epilog_fusion'", "epilogue_fusion"]),
        ({"options": 3}, ["mapping", "3"]),
        ({"options": {"threads": "two"}}, ["threads", "int", "'two'"]),
        ({"options": {"guard_filter_fn": 1}}, ["guard_filter_fn", "callable"]),
        ({"dynamic": "yes"}, ["dynamic", "'yes'", "None, True or False"]),
        ({"recompile_limit": 0}, ["recompile_limit", "positive", "0"]),
        ({"recompile_limit": "8"}, ["recompile_limit", "'8'"]),
        ({"name": 8}, ["name", "string", "8"]),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(exc.UserError) as caught:
        pycompiler.compile(add, **arguments)
    assert [w for w in words if w not in str(caught.value)] == []


@pytest.mark.parametrize("target", [3, "add", [add]])
def test_wrong_targets(target: Any) -> None:
    with pytest.raises(exc.ArgumentError, match="function or an nn.Module"):
        pycompiler.compile(target)
    with pytest.raises(exc.ArgumentError):
        pycompiler.disable(target)
    with pytest.raises(exc.ArgumentError):
        pycompiler.run(target)
    with pytest.raises(exc.ArgumentError):
        pycompiler.reset(target)


def test_errors_are_torchs_builtin_errors_too() -> None:
    for kind in (RuntimeError, ValueError):
        with pytest.raises(kind):
            pycompiler.compile(add, mode="fast")
    with pytest.raises(TypeError):
        pycompiler.compile(add, no_such_argument=1)


@pytest.mark.parametrize("mode", ["default", "lite", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes(mode: str) -> None:
    assert torch.equal(pycompiler.compile(add, mode=mode, backend="eager")(X), add(X))


def test_disable_argument_and_knob() -> None:
    assert pycompiler.compile(add, disable=True) is add
    with config.patch(disable=True):
        assert pycompiler.compile(add) is add


def test_fullgraph_and_its_old_name() -> None:
    def broken(x: Any) -> Any:
        y = x + 1
        print(y.shape, end="")
        return y * 2

    for arguments in ({"fullgraph": True}, {"nopython": True}):
        with pytest.raises(exc.Unsupported) as caught:
            pycompiler.compile(broken, backend="eager", **arguments)(X)
        text = str(caught.value)
        assert "test_api.py" in text
        assert "what to do" in text
    assert torch.equal(pycompiler.compile(broken, backend="eager")(X), broken(X))


def test_guard_filter() -> None:
    seen: list[Any] = []

    def keep(guards: Any) -> list[bool]:
        seen.extend(guards)
        return [g.kind != "equals" for g in guards]

    def fn(x: Any, n: int) -> Any:
        return x + n

    made = pycompiler.compile(fn, backend="eager", options={"guard_filter_fn": keep})
    assert torch.equal(made(X, 1), X + 1)
    assert torch.equal(made(X, 5), X + 1)  # the result that the filter allowed
    assert any(g.kind == "equals" for g in seen)


def test_name_is_in_messages(caplog: Any) -> None:
    made = pycompiler.compile(add, backend="eager", name="my region", recompile_limit=1)
    made(X)
    with pytest.warns(exc.RecompileLimitWarning, match="my region"):
        made(X.double())


# disable -------------------------------------------------------------------------------------------------------
def test_disabled_functions_break_the_graph(graphs: Any) -> None:
    ran: list[bool] = []

    @pycompiler.disable
    def eager_part(x: Any) -> Any:
        """Runs."""
        ran.append(pycompiler.is_compiling())
        return x.sin()

    assert (eager_part.__name__, eager_part.__doc__) == ("eager_part", "Runs.")

    def fn(x: Any) -> Any:
        return eager_part(x + 1) * 2

    made = pycompiler.compile(fn, backend=graphs)
    for _ in range(2):
        assert torch.equal(made(X), (X + 1).sin() * 2)
    assert ran == [False, False]
    assert len(graphs.seen) == 2
    assert pycompiler.compile(eager_part, backend=graphs)(X) is not None
    assert len(graphs.seen) == 2


@pytest.mark.parametrize("recursive", [True, False])
def test_disable_as_decorator_with_arguments(recursive: bool) -> None:
    @pycompiler.disable(recursive=recursive, reason="calls a library")
    def part(x: Any) -> Any:
        return inner(x) + 1

    def inner(x: Any) -> Any:
        return x * 3

    def fn(x: Any) -> Any:
        return part(x + 1) * 2

    assert torch.equal(pycompiler.compile(fn, backend="eager")(X), ((X + 1) * 3 + 1) * 2)
    report = pycompiler.explain(fn)(X)
    assert report.graph_break_count >= 1
    assert any("part" in b.reason for b in report.break_reasons)


def test_skip_leaves_one_function_to_python(graphs: Any) -> None:
    def inner(x: Any) -> Any:
        return x * 3

    @pycompiler.skip
    def part(x: Any) -> Any:
        return inner(x) + 1

    assert torch.equal(pycompiler.compile(part, backend=graphs)(X), X * 3 + 1)
    assert [[n.name for n in gm.graph.nodes if n.op == "call_function"] for gm in graphs.seen] == [["mul"]]


def test_disable_of_modules_leaves_the_module_alone(graphs: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    marked = pycompiler.disable(model[0])
    assert "forward" not in vars(model[0])
    assert isinstance(marked, nn.Linear)
    assert marked._orig_mod is model[0]
    assert torch.equal(marked(BATCH), model[0](BATCH))
    want = model(BATCH)
    model[0] = marked
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    made = pycompiler.compile(model, backend=graphs)
    torch.testing.assert_close(made(BATCH), want)
    assert not any("linear" in str(gm.code) for gm in graphs.seen)
    assert type(pickle.loads(pickle.dumps(marked))) is nn.Linear
    torch.testing.assert_close(copy.deepcopy(model)(BATCH), want)


def test_disable_of_classes_methods_and_compiled_things(graphs: Any) -> None:
    @pycompiler.disable
    class Part:
        def __init__(self, n: int) -> None:
            self.n = n

        def __call__(self, x: Any) -> Any:
            return x + self.n

    assert isinstance(Part, type)
    assert torch.equal(pycompiler.compile(lambda x: Part(2)(x) * 2, backend="eager")(X), (X + 2) * 2)

    compiled = pycompiler.compile(add, backend=graphs)
    eager = pycompiler.disable(compiled)
    assert torch.equal(eager(X), add(X))
    assert graphs.seen == []
    assert torch.equal(pycompiler.disable(Methods().plain)(X), X - 1)
    net = Net()
    assert pycompiler.disable(pycompiler.compile(net, backend=graphs))._orig_mod is net


def test_graph_break(graphs: Any) -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        pycompiler.graph_break()
        return y * 2

    assert fn(X) is not None  # outside of a capture it does nothing
    assert torch.equal(pycompiler.compile(fn, backend=graphs)(X), (X + 1) * 2)
    assert len(graphs.seen) == 2


def test_is_compiling() -> None:
    def fn(x: Any) -> Any:
        return x + 1 if pycompiler.is_compiling() else x - 1

    assert pycompiler.is_compiling() is False
    assert torch.equal(fn(X), X - 1)
    assert torch.equal(pycompiler.compile(fn, backend="eager", fullgraph=True)(X), X + 1)


# limits, policies, counters ------------------------------------------------------------------------------------
def plus(x: Any, n: int) -> Any:
    return x + n


def limit_warnings(made: Any, values: range) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in values:
            assert torch.equal(made(X, n), X + n)
    return [str(w.message) for w in caught if issubclass(w.category, exc.RecompileLimitWarning)]


def test_limit_warns_once_and_keeps_entries() -> None:
    made = pycompiler.compile(plus, backend="eager", recompile_limit=3, dynamic=False)
    with config.patch(specialize_int=True):
        found = limit_warnings(made, range(10))
        assert len(found) == 1
        assert "plus" in found[0]
        assert "limit (3 entries)" in found[0]
        assert "L['n']" in found[0]
        assert "recompile_limit" in found[0]
        before = pycompiler.counters(made)
        assert before["compiles"] == 3
        assert before["limit_hits"] == 7
        made(X, 1)  # an entry from before the limit
        after = pycompiler.counters(made)
        assert after["hits"] == before["hits"] + 1
        assert after["eager_calls"] == before["eager_calls"]


def test_limit_of_the_config_is_read_at_each_miss() -> None:
    with config.patch(specialize_int=True):
        made = pycompiler.compile(plus, backend="eager")
        with config.patch(recompile_limit=2):
            limit_warnings(made, range(5))
            assert compiles(made) == 2
        limit_warnings(made, range(5))
        assert compiles(made) == 5


def test_accumulated_limit() -> None:
    with config.patch(specialize_int=True, accumulated_recompile_limit=2):
        made = pycompiler.compile(plus, backend="eager")
        assert len(limit_warnings(made, range(5))) == 1
        assert compiles(made) == 2


@pytest.mark.parametrize("arguments, knobs", [({"fullgraph": True}, {}), ({}, {"fail_on_recompile_limit_hit": True})])
def test_limit_raises_where_asked(arguments: Any, knobs: Any) -> None:
    with config.patch(specialize_int=True, **knobs):
        made = pycompiler.compile(plus, backend="eager", recompile_limit=2, **arguments)
        made(X, 0)
        made(X, 1)
        for _ in range(2):  # each time, not only the first time
            with pytest.raises(exc.FailOnRecompileLimitHit, match=r"plus.*limit \(2 entries\)[\s\S]*L\['n'\]"):
                made(X, 2)
        assert torch.equal(made(X, 1), X + 1)


def test_error_on_recompile() -> None:
    made = pycompiler.compile(plus, backend="eager")
    with config.patch(error_on_recompile=True, specialize_int=True):
        made(X, 0)  # only the first compile happens
        with pytest.raises(exc.RecompileError, match=r"L\['n'\] == 0: seen 1[\s\S]*way out"):
            made(X, 1)
        assert torch.equal(made(X, 0), X)


def test_recompile_log_says_guard_seen_expected_line_and_way_out(caplog: Any) -> None:
    made = pycompiler.compile(plus, backend="eager")
    logging.getLogger("pycompiler").propagate = True
    from pycompiler import logs

    logs.set_logs("recompiles")
    try:
        with caplog.at_level(logging.INFO, "pycompiler"):
            made(X, 0)
            made(X.double(), 0)
    finally:
        logs.reset_logs()
    text = caplog.text
    for part in (
        "recompiling plus",
        "L['x']",
        "dtype torch.float64, expected torch.float32",
        "test_api.py:",
        "way out",
    ):
        assert part in text, text


def test_counters_and_reset_of_one_and_of_all() -> None:
    one, two = pycompiler.compile(plus, backend="eager"), pycompiler.compile(plus, backend="eager")
    for made in (one, two):
        made(X, 0)
        made(X, 0)
    assert {k: pycompiler.counters(one)[k] for k in ("hits", "misses", "compiles")} == {
        "hits": 1, "misses": 1, "compiles": 1,
    }  # fmt: skip
    everything = pycompiler.counters()
    assert everything["compiles"] >= 2
    pycompiler.reset(one)
    assert (compiles(one), compiles(two)) == (0, 1)
    one(X, 0)
    assert compiles(one) == 1
    pycompiler.reset()
    assert pycompiler.counters()["compiles"] == 0
    two(X, 0)
    assert compiles(two) == 1


def test_counters_include_resume_functions() -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        pycompiler.graph_break()
        return y * 2

    made = pycompiler.compile(fn, backend="eager")
    made(X)
    assert pycompiler.counters(made)["compiles"] == 2
    pycompiler.reset(made)
    assert torch.equal(made(X), (X + 1) * 2)
    assert pycompiler.counters(made)["compiles"] == 2


def test_explain_miss(net: Net) -> None:
    made = pycompiler.compile(plus, backend="eager")
    assert pycompiler.explain_miss(made, X, 1) == []
    made(X, 1)
    assert pycompiler.explain_miss(made, X, 1) == []
    [text] = pycompiler.explain_miss(made, X.double(), 1)
    assert "torch.float64" in text
    assert compiles(made) == 1
    module = pycompiler.compile(net.eval(), backend="eager")
    module(BATCH)
    assert pycompiler.explain_miss(module, BATCH) == []
    assert "sizes" in pycompiler.explain_miss(module, BATCH[:2])[0]
    bound = pycompiler.compile(Methods().plain, backend="eager")
    bound(X)
    assert pycompiler.explain_miss(bound, X) == []


def frozen_cases() -> list[Any]:
    return [plus, Net().eval(), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), Methods().plain]


@pytest.mark.parametrize("index", range(4), ids=["function", "module", "Sequential", "method"])
def test_frozen_never_compiles(index: int) -> None:
    target = frozen_cases()[index]
    made = pycompiler.compile(target, backend="eager")
    args = (BATCH, 1) if index == 0 else (BATCH,)
    torch.testing.assert_close(made(*args), target(*args))
    frozen = pycompiler.run(made)
    torch.testing.assert_close(frozen(*args), target(*args))
    assert pycompiler.counters(frozen)["hits"] == pycompiler.counters(made)["hits"] == 1
    strange = [BATCH[:2], BATCH.clone().requires_grad_(), BATCH[:1].expand(3, 4), BATCH.t().contiguous().t()]
    for x in strange:
        torch.testing.assert_close(frozen(x, *args[1:]), target(x, *args[1:]))
    with torch.no_grad():
        torch.testing.assert_close(frozen(*args), target(*args))
    assert compiles(made) == 1
    made(strange[0], *args[1:])  # `made` itself is not frozen, and the view shares its entries
    assert compiles(made) == 2
    frozen(strange[0], *args[1:])
    assert pycompiler.counters(made)["hits"] == 2
    pycompiler.reset(made)
    torch.testing.assert_close(frozen(*args), target(*args))
    assert compiles(made) == 0
    made(*args)
    assert compiles(made) == 1


def test_a_frozen_callable_stays_frozen_across_resets() -> None:
    made = pycompiler.set_policy(pycompiler.compile(plus, backend="eager"), "run")
    pycompiler.reset(made)
    made(X, 1)
    assert compiles(made) == 0
    pycompiler.set_policy(made, "compile")
    made(X, 1)
    assert compiles(made) == 1


def test_frozen_resume_functions() -> None:
    def fn(x: Any, flag: bool) -> Any:
        y = x + 1
        pycompiler.graph_break()
        return y * 2 if flag else y * 3

    made = pycompiler.compile(fn, backend="eager")
    made(X, True)
    before = pycompiler.counters(made)["compiles"]
    frozen = pycompiler.run(made)
    assert torch.equal(frozen(X, False), (X + 1) * 3)
    assert torch.equal(frozen(X.double(), True), (X.double() + 1) * 2)
    assert pycompiler.counters(made)["compiles"] == before
    assert torch.equal(made(X, False), (X + 1) * 3)
    assert pycompiler.counters(made)["compiles"] > before


def test_a_frozen_view_looks_like_its_original(net: Net) -> None:
    frozen = pycompiler.run(pycompiler.compile(add, backend="eager"))
    assert (frozen.__name__, inspect.signature(frozen), inspect.unwrap(frozen)) == ("add", inspect.signature(add), add)
    made = pycompiler.compile(net, backend="eager")
    view = pycompiler.run(made)
    assert isinstance(view, Net)
    assert list(view.state_dict()) == list(net.state_dict())
    for again in (copy.deepcopy(view), pycompiler.run(view)):
        again(BATCH)
        assert compiles(again) == 0
    assert type(pickle.loads(pickle.dumps(view))) is Net
    again = pycompiler.compile(view, backend="eager")  # compiles the original
    again(BATCH)
    assert compiles(again) == 1


def test_a_frozen_view_is_frozen_in_its_thread_until_it_ends() -> None:
    def fails(x: Any) -> Any:
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        pycompiler.run(pycompiler.compile(fails, backend="eager"))(X)
    inner = pycompiler.compile(plus, backend="eager")
    view = pycompiler.run(pycompiler.compile(nn.Sequential(nn.ReLU()), backend="eager"))
    view.register_forward_hook(lambda module, args, result: inner(result, 1))
    assert torch.equal(view(X), X + 1)
    assert compiles(inner) == 0
    inner(X, 1)
    assert compiles(inner) == 1


def test_a_frozen_view_called_by_compiled_code_is_in_its_graph(graphs: Any) -> None:
    view = pycompiler.run(pycompiler.compile(plus, backend="eager"))
    module = pycompiler.run(pycompiler.compile(nn.ReLU(), backend="eager"))
    made = pycompiler.compile(lambda x: module(view(x, 1)) * 2, backend=graphs, fullgraph=True)
    assert torch.equal(made(X), (X + 1) * 2)
    assert len(graphs.seen) == 1


def test_run_of_what_is_not_compiled() -> None:
    assert pycompiler.run(plus) is plus
    model = nn.Sequential(pycompiler.compile(nn.Linear(4, 4), backend="eager"), nn.ReLU())
    view = pycompiler.run(model)
    torch.testing.assert_close(view(BATCH), model[0]._orig_mod(BATCH).relu())
    assert compiles(model[0]) == 0
    model(BATCH)
    assert compiles(model[0]) == 1

    @pycompiler.run()
    @pycompiler.compile(backend="eager")
    def fn(x: Any) -> Any:
        return x + 1

    assert torch.equal(fn(X), X + 1)
    assert compiles(fn) == 0
    with pytest.raises(exc.ArgumentError, match="cannot freeze a class"):
        pycompiler.run(Decorated)


def test_policies() -> None:
    made = pycompiler.compile(plus, backend="eager")
    made(X, 1)
    pycompiler.set_policy(made, "error")
    assert torch.equal(made(X, 1), X + 1)
    with pytest.raises(exc.RecompileError, match="plus"):
        made(X.double(), 1)
    pycompiler.set_policy(made, "eager")
    assert torch.equal(made(X.double(), 1), X.double() + 1)
    assert pycompiler.counters(made)["eager_calls"] == 1
    with pytest.raises(exc.UnknownName, match="frozen"):
        pycompiler.set_policy(made, "frozen")


# lifetimes -----------------------------------------------------------------------------------------------------
def gone(make: Callable[[], tuple[Any, Any]]) -> bool:
    """Whether the object that `make` watches dies with the returned object."""
    ref, kept = make()
    assert ref() is not None
    del kept
    gc.collect()
    return ref() is None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_models_are_freed(backend: str, training: bool) -> None:
    def make() -> tuple[Any, Any]:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        made = pycompiler.compile(model, backend=backend)
        with torch.set_grad_enabled(training):
            out = made(BATCH).sum()
        if training:
            out.backward()
        return weakref.ref(model[0].weight), made

    assert gone(make)


def test_models_in_closures_are_freed() -> None:
    def make() -> tuple[Any, Any]:
        model = nn.Linear(4, 4)

        @pycompiler.compile(backend="eager")
        def step(x: Any) -> Any:
            y = model(x)
            pycompiler.graph_break()
            return y.sum() + model.bias.sum()

        step(BATCH).backward()
        return weakref.ref(model), step

    assert gone(make)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("closure", [False, True])
def test_functions_that_break_are_freed(backend: str, closure: bool) -> None:
    """Their code refers to compiled functions that refer back; the collector does not traverse code objects."""

    def make() -> tuple[Any, Any]:
        scale = torch.full((2,), 3.0)

        def step(x: Any, n: Any) -> Any:
            try:
                for v in (n, 2):
                    x = x * v
                    pycompiler.graph_break()
            finally:
                x = x + (scale if closure else 1)
            return x

        marker = nn.Identity()
        own = types.FunctionType(step.__code__, {**globals(), "marker": marker}, "step", None, step.__closure__)
        made = pycompiler.compile(own, backend=backend)
        for n in (1, 3):
            assert torch.equal(made(torch.ones(2), n), own(torch.ones(2), n))
        return weakref.ref(marker), made

    assert gone(make)


def test_functions_may_be_dropped_while_they_run() -> None:
    kept: list[Any] = []

    def collected(x: Any) -> Any:
        pycompiler.graph_break()
        kept.clear()
        gc.collect()
        return x + 1

    def step(x: Any) -> Any:
        for _ in range(3):
            x = collected(x * 2)
        pycompiler.graph_break()
        return x.sin()

    for _ in range(2):
        kept.append(pycompiler.compile(step, backend="eager"))
        assert torch.equal(kept[0](torch.ones(2)), torch.full((2,), 15.0).sin())


def test_arguments_are_not_kept() -> None:
    made = pycompiler.compile(lambda m, x: m(x) + 1, backend="eager")

    def make() -> tuple[Any, Any]:
        model = nn.Linear(4, 4)
        x = torch.ones(3, 4)
        made(model, x)
        return weakref.ref(model), (model, x)

    assert gone(make)
    x = torch.ones(3, 4)
    ref = weakref.ref(x)
    made(nn.Linear(4, 4), x)
    del x
    gc.collect()
    assert ref() is None


def test_compile_and_reset_cycles_are_flat() -> None:
    made = pycompiler.compile(plus, backend="eager")

    def cycles(n: int) -> int:
        for _ in range(n):
            made(X, 1)
            pycompiler.reset(made)
        gc.collect()
        return len(gc.get_objects())

    cycles(5)
    before = cycles(10)
    assert cycles(40) - before < 200


def test_new_callables_are_flat() -> None:
    def cycles(n: int) -> int:
        for _ in range(n):
            pycompiler.compile(lambda x: x + 1, backend="eager")(X)
            pycompiler.compile(nn.Linear(4, 4), backend="eager")(BATCH)
        gc.collect()
        return len(gc.get_objects())

    cycles(5)
    before = cycles(5)
    assert cycles(25) - before < 200


# the list of names ---------------------------------------------------------------------------------------------
def test_public_names() -> None:
    assert [n for n in pycompiler.__all__ if not hasattr(pycompiler, n)] == []
    functions = [getattr(pycompiler, n) for n in pycompiler.__all__]
    assert [f.__name__ for f in functions if isinstance(f, types.FunctionType) and not f.__doc__] == []
    for name in ("Unsupported", "BackendCompilerFailed", "InvalidBackend", "RecompileError", "FailOnRecompileLimitHit",
                 "UserError", "InternalTorchDynamoError", "TorchDynamoException"):  # fmt: skip
        assert issubclass(getattr(exc, name), Exception)
