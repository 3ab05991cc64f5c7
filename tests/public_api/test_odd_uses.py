"""Odd uses of the public API: arguments, unread knobs, copies, pickles, scripted modules."""

from __future__ import annotations

import ast
import copy
import dataclasses
import dis
import functools
import gc
import inspect
import logging
import math
import operator
import pickle
import re
import subprocess
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from pycompiler import backends, config, exc, logs
from pycompiler.backends import options as known
from pycompiler.backends.entry import compile_fx
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.debug import directory
from tests import children

X = torch.arange(4.0)


@pytest.fixture
def said(caplog: Any) -> Iterator[Any]:
    """The messages of the log's warnings; the set of messages already logged is cleared."""
    vars(config)["_said"].clear()
    logging.getLogger("pycompiler").propagate = True
    with caplog.at_level(logging.WARNING, "pycompiler"):
        yield lambda: [r.getMessage() for r in caplog.records]


@pytest.fixture
def restored() -> Iterator[None]:
    with config.patch(config.snapshot()):
        yield


def plain(x: Any) -> Any:
    return x + 1


@pycompiler.compile(backend="eager")
def decorated(x: torch.Tensor, k: int = 2) -> torch.Tensor:
    """Multiplies."""
    return x * k


# a backend's own code is no part of the program ----------------------------------------------------------------
def inner_of_hook(x: Any) -> Any:
    a = x.sin()
    pycompiler.graph_break()
    return a.cos() * 3


def under_a_manager(x: Any) -> Any:
    with open("/dev/null"):
        y = inner_of_hook(x)
        pycompiler.graph_break()
    return y + 1


def after(outputs: Any) -> Any:
    return tuple(o * 1 for o in outputs)


RETURNS: dict[str, Any] = {
    "forward": lambda gm: gm.forward,
    "gm": lambda gm: gm,
    "lambda": lambda gm: lambda *a: gm(*a),
    "partial": lambda gm: functools.partial(gm),
    "bound method": lambda gm: torch.fx.Interpreter(gm).run,
    "user's function": lambda gm: lambda *a: after(gm(*a)),
    "compiled": lambda gm: pycompiler.compile(gm, backend="eager"),
}


@pytest.mark.parametrize("kind", RETURNS)
def test_what_a_backend_returned_is_not_captured(kind: str) -> None:
    graphs: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return RETURNS[kind](gm)

    made = pycompiler.compile(under_a_manager, backend=backend)
    for _ in range(3):
        assert torch.equal(made(X), under_a_manager(X))
    assert len(graphs) == 3


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize(
    "outputs", [lambda o: [o[0], None], lambda o: (v for v in o), dict.fromkeys, lambda o: torch.stack(o), "ab".join],
    ids=["None", "generator", "dict", "tensor", "raises"],
)  # fmt: skip
def test_dropped_outputs_raise(outputs: Any, breaks: bool) -> None:
    def fn(x: Any) -> Any:
        y, z = x + 1, x * 2
        if breaks:
            pycompiler.graph_break()
        return y, z

    made = pycompiler.compile(fn, backend=lambda gm, inputs: lambda *a: outputs(gm(*a)))
    with pytest.raises(TypeError, match="expected a tuple of the graph's 2 outputs" if outputs != "ab".join else "str"):
        made(X)


def test_error_of_a_backend_has_a_note_that_names_it() -> None:
    error = KeyError("mine")

    def failing(gm: Any, inputs: Any) -> Any:
        raise error

    made = pycompiler.compile(plain, backend=failing)
    for _ in range(2):
        with pytest.raises(KeyError) as caught:
            made(X)
        assert caught.value is error
    assert error.__notes__ == ["raised by backend 'failing', which was called to compile a graph"]


# arguments -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fullgraph", "disable", "isolate_recompiles", "nopython"])
@pytest.mark.parametrize("value", ["False", 1, []], ids=repr)
def test_flags_are_bools(name: str, value: Any) -> None:
    with pytest.raises(exc.ArgumentError, match=f"{name} must be True or False, got"):
        pycompiler.compile(plain, **{name: value})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epilogue_fusion": "yes"}, "epilogue_fusion takes bool, got 'yes'"),
        ({"triton.cudagraphs": 1}, "triton.cudagraphs takes bool"),
        ({"activation_memory_budget": 2.0}, "from 0 to 1, got 2.0"),
        ({"activation_memory_budget": math.nan}, "from 0 to 1, got nan"),
        ({"threads": -1}, "from 0 to 4096, got -1"),
        ({3: 1}, "unknown option 3"),
        ({"recompile_limit": 3}, "unknown option 'recompile_limit'"),
    ],
)
def test_options_of_wrong_types_and_values(options: Any, words: str) -> None:
    with pytest.raises(exc.UserError, match=words):
        pycompiler.compile(plain, options=options)


def test_options_and_modes_are_checked_behind_torch_compile() -> None:
    for arguments in ({"options": {"nope": 1}}, {"options": {"threads": "2"}}, {"mode": "fast"}):
        with pytest.raises(RuntimeError, match="'nope'|takes int|'fast'"):
            torch.compile(plain, backend=compile_fx, **arguments)(X)
        torch._dynamo.reset()


def test_arguments_whose_repr_raises() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise ValueError("no")

    with pytest.raises(exc.ArgumentError, match="cannot be shown of type Silent"):
        pycompiler.compile(plain, dynamic=Silent())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("recompile_limit", 0), ("recompile_limit", -1), ("cache_size_limit", -1), ("accumulated_recompile_limit", -1),
        ("activation_memory_budget", 2.0), ("activation_memory_budget", -0.5), ("activation_memory_budget", math.nan),
        ("threads", -2), ("max_fusion_size", 0), ("cxx_timeout", -1.0), ("cxx_timeout", math.nan), ("cache_dir", "a\0b"),
        ("repro_tolerance", math.nan),
    ],
)  # fmt: skip
def test_numbers_out_of_range(name: str, value: Any, restored: None) -> None:
    before = getattr(config, name)
    with pytest.raises(exc.ConfigError, match=f"config.{config.knob(name).name} takes"):
        setattr(config, name, value)
    with pytest.raises(exc.ConfigError):
        config.patch({name: value})
    assert getattr(config, name) == before


def test_huge_limits(restored: None) -> None:
    config.recompile_limit = config.accumulated_recompile_limit = 2**70
    assert torch.equal(pycompiler.compile(plain, backend="eager")(X), X + 1)
    assert torch.equal(pycompiler.compile(plain, backend="eager", recompile_limit=2**70)(X), X + 1)


# each knob and artefact is used --------------------------------------------------------------------------------
def nodes_of_the_package() -> Iterator[tuple[Path, ast.AST]]:
    package = Path(pycompiler.__file__).parent
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            yield path.relative_to(package), node


def read_names() -> tuple[set[str], set[str]]:
    """Knobs that the code reads (`config.<name>`, `get_knob`, or by a row of the debug directory's tables), and
    artefacts that it creates with `artifact("<name>")`."""
    knobs = {f"trace.{switch}" for switch, _ in directory.LOGS.values()}
    knobs |= {f"trace.{row.switch}" for row in directory.FILES.values()}
    artifacts = set()
    for path, node in nodes_of_the_package():
        if str(path) == "config.py":
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            knobs.add(ast.unparse(node).removeprefix("config."))
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            if ast.unparse(node.func) in ("artifact", "logs.artifact"):
                artifacts.add(node.args[0].value)
    return knobs, artifacts


def test_knobs_and_logs_that_nothing_reads_are_marked() -> None:
    knobs, artifacts = read_names()
    assert {row.name for row in config.KNOBS if row.kept is not None} == {r.name for r in config.KNOBS} - knobs
    assert set(logs.ARTIFACTS) == artifacts


def test_transforms_are_captured_where_they_may(restored: None) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda y: (y * y).sum())(x) + 1

    for captured in (True, False):
        config.capture_func_transforms = captured
        assert bool(pycompiler.explain(program)(X).graph_break_count) is not captured
        assert torch.equal(pycompiler.compile(program, backend="eager")(X), program(X))


def test_variables_that_the_code_names_are_known() -> None:
    known = {*config.OTHER_VARIABLES, *(v for row in config.KNOBS for v in row.variables)}
    named = {(str(path), word) for path, node in nodes_of_the_package() if isinstance(node, ast.Constant)
             for word in re.findall(r"\bPYCOMPILER_[A-Z_]+\b", node.value if type(node.value) is str else "")}  # fmt: skip
    assert named
    assert {(path, word) for path, word in named if word not in known} == set()


UNREAD_PARAMETERS = {
    "mark_unbacked": {"hint_override", "specialize_on", "shape_id"},  # documented: without effect
    "graph_break": {"msg"},  # read where it is captured
    "substitute_in_graph": {"can_constant_fold_through"},  # documented: everything foldable is folded
}


FUNCTIONS = [n for n in pycompiler.__all__ if isinstance(getattr(pycompiler, n), types.FunctionType)]


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if getattr(pycompiler, n).__module__.startswith("pycompiler")])
def test_every_parameter_is_read(name: str) -> None:
    fn = getattr(pycompiler, name)
    [made] = ast.parse(textwrap.dedent(inspect.getsource(fn))).body
    read = {n.id for n in ast.walk(made) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert set(inspect.signature(fn).parameters) - read == UNREAD_PARAMETERS.get(fn.__name__, set())


def test_knobs_that_nothing_reads_say_so_once(said: Any, restored: None) -> None:
    config.guard_nn_modules = False
    config.guard_nn_modules = True
    config.guard_nn_modules = False
    config.verbose = True
    assert said() == ["config.guard_nn_modules = False has no effect: nothing reads this knob yet"]


def test_sizes_are_symbols_at_once_where_static_ones_are_not_the_default(restored: None) -> None:
    for static in (True, False):
        config.assume_static_by_default = static
        compiled = pycompiler.compile(lambda x: x + 1, backend="eager")
        for n in (3, 4, 5):
            assert torch.equal(compiled(torch.ones(n)), torch.full((n,), 2.0))
        assert pycompiler.counters(compiled)["compiles"] == (2 if static else 1)


def test_sizes_are_numbers_where_symbols_are_not_allowed(restored: None) -> None:
    for allowed, compiles in ((True, 1), (False, 3)):
        config.dynamic_shapes = allowed
        compiled = pycompiler.compile(lambda x: x + 1, backend="eager", dynamic=True)
        for n in (3, 4, 5):
            assert torch.equal(compiled(torch.ones(n)), torch.full((n,), 2.0))
        assert pycompiler.counters(compiled)["compiles"] == compiles


def test_reasons_of_recompiles_are_logged_where_they_may(restored: None, caplog: pytest.LogCaptureFixture) -> None:
    logs.set_logs("recompiles")
    try:
        for told in (True, False):
            config.report_guard_failures = told
            caplog.clear()
            compiled = pycompiler.compile(lambda x: x + 1, backend="eager", dynamic=False)
            compiled(torch.ones(3))
            compiled(torch.ones(4))
            assert any("failed guards" in r.getMessage() for r in caplog.records) is told
    finally:
        logs.reset_logs()


@pytest.mark.captures_nothing("warnings of compile(), whose results are not called")
def test_arguments_that_nothing_reads_say_so_once(said: Any) -> None:
    for _ in range(2):
        pycompiler.compile(plain, mode="max-autotune")
        pycompiler.compile(plain, options={"max_autotune": True, "epilogue_fusion": True, "trace.enabled": False})
        pycompiler.compile(plain, dynamic=True, isolate_recompiles=False)
        pycompiler.compile(plain, mode="max-autotune", backend=lambda gm, inputs, mode: gm)
    assert [text.split(" has no effect")[0] for text in said()] == [
        "mode 'max-autotune'", "option max_autotune = True", "isolate_recompiles=False",
    ]  # fmt: skip


def test_every_option_is_a_row() -> None:
    assert set(known.KNOBS) <= set(config.BY_NAME)
    assert not set(known.KNOBS) & set(known.WITHOUT_EFFECT)


def test_unknown_variables_are_named_with_the_nearest() -> None:
    environ = {
        "PYCOMPILER_VERBSE": "1",
        "PYCOMPILER_LOGS": "",
        "PYCOMPILER_CACHE_SIZE_LIMIT": "3",
        "PATH": "",
        "PYCOMPILER_12345": "",
    }
    assert list(config.unknown_variables(environ)) == [
        "environment variable PYCOMPILER_VERBSE is unknown and has no effect (did you mean PYCOMPILER_VERBOSE?)",
        "environment variable PYCOMPILER_12345 is unknown and has no effect",
    ]


@pytest.mark.captures_nothing("a callable that was not compiled")
def test_run_of_what_was_not_compiled_says_so(said: Any) -> None:
    assert pycompiler.run(plain) is plain
    [text] = said()
    assert "run() froze nothing" in text
    assert "plain" in text
    assert pycompiler.run(pycompiler.compile(plain)) is not plain
    assert len(said()) == 1


def test_the_knob_disable_holds_for_what_is_compiled_already() -> None:
    made = pycompiler.compile(plain, backend="eager")
    with config.patch(disable=True):
        assert torch.equal(made(X), X + 1)
        assert pycompiler.counters(made)["compiles"] == 0
        pycompiler.set_policy(made, "error")
        assert torch.equal(made(X), X + 1)
    with pytest.raises(exc.RecompileError):
        made(X)
    pycompiler.set_policy(made, "compile")
    made(X)
    assert pycompiler.counters(made)["compiles"] == 1


# messages and errors -------------------------------------------------------------------------------------------
def test_graph_break_keeps_its_message() -> None:
    def fn(x: Any) -> Any:
        pycompiler.graph_break("mine, all mine"[:4])
        return x

    with pytest.raises(exc.Unsupported) as caught:
        pycompiler.compile(fn, fullgraph=True)(X)
    assert caught.value.reason == "pycompiler.graph_break() was called: mine"
    with pytest.raises(exc.Unsupported) as caught:
        pycompiler.compile(lambda x: pycompiler.graph_break(msg="by name"), fullgraph=True)(X)
    assert caught.value.reason.endswith(": by name")


def test_errors_are_runtime_errors_as_torchs_are() -> None:
    assert issubclass(exc.Unsupported, RuntimeError)
    assert issubclass(exc.TorchDynamoException, RuntimeError)
    with pytest.raises(RuntimeError):
        pycompiler.compile(lambda x: x if x.sum() > 0 else -x, fullgraph=True)(X)


def test_internal_errors_raise_under_fullgraph(monkeypatch: Any) -> None:
    def failing(gm: Any, inputs: Any) -> Any:
        raise KeyError("a bug of ours")

    monkeypatch.setitem(backends.REGISTRY, "native", failing)
    with config.patch(raise_internal_errors=False):
        assert torch.equal(pycompiler.compile(plain)(X), X + 1)
        made = pycompiler.compile(plain, fullgraph=True)
        for _ in range(2):
            with pytest.raises(exc.InternalError, match="a bug of ours"):
                made(X)
        with config.patch(suppress_errors=True):
            assert torch.equal(made(X), X + 1)


# copies and pickles --------------------------------------------------------------------------------------------
class Holder(nn.Module):
    """Holds compiled functions as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.activation = pycompiler.compile(plain, backend="eager")
        self.own = pycompiler.compile(self.step, backend="eager")
        self.table = {"a": [decorated]}

    def step(self, x: Any) -> Any:
        return self.linear(x) + 1

    def forward(self, x: Any) -> Any:
        return self.activation(self.own(x)) + self.table["a"][0](x)


def apart(one: Holder, other: Holder) -> None:
    assert torch.equal(one(X), other(X))
    assert other.own.__self__ is other
    with torch.no_grad():
        other.linear.weight.add_(1)
    assert not torch.equal(one(X), other(X))


def test_modules_that_hold_compiled_functions_are_copied() -> None:
    module = Holder()
    apart(module, copy.deepcopy(module))
    assert copy.copy(module).table is module.table


def test_modules_that_hold_compiled_functions_are_pickled() -> None:
    module = Holder()
    apart(module, pickle.loads(pickle.dumps(module)))


@pytest.mark.captures_nothing("copies of a compiled function, which is not called")
def test_compiled_functions_are_copied_and_pickled_as_functions_are() -> None:
    made = pycompiler.compile(plain, backend="eager")
    assert copy.copy(made) is made
    assert copy.deepcopy([made])[0] is made
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert pickle.loads(pickle.dumps(made)) is plain
    assert pickle.loads(pickle.dumps(pycompiler.compile(operator.neg))) is operator.neg
    assert pickle.loads(pickle.dumps(pycompiler.compile(Holder().linear)))(X).shape == X.shape
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(pycompiler.compile(lambda x: x))


@pytest.mark.captures_nothing("the looks of a compiled function, which is not called")
def test_compiled_functions_look_like_functions_to_inspect() -> None:
    async def coroutine(x: Any) -> Any:
        return x

    assert inspect.isroutine(decorated)
    assert inspect.iscoroutinefunction(pycompiler.compile(coroutine))
    assert inspect.getsource(decorated).startswith("@pycompiler.compile")
    assert inspect.getdoc(decorated) == "Multiplies."
    assert inspect.getfullargspec(decorated).args == ["x", "k"]
    assert pycompiler.compile(Holder().linear)._pycompiler_compiled.__name__ == "_wrapped_call_impl"


def scriptable(x: torch.Tensor) -> torch.Tensor:
    return x + 1


# TorchScript ---------------------------------------------------------------------------------------------------
SCRIPTED: dict[str, Any] = {
    "scripted module": lambda: torch.jit.script(nn.Linear(4, 4)),
    "traced module": lambda: torch.jit.trace(nn.Linear(4, 4), (X,)),
    "scripted function": lambda: torch.jit.script(scriptable),
    "traced function": lambda: torch.jit.trace(plain, (X,)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("kind", SCRIPTED)
def test_scripted_and_traced_code_runs_as_it_is(kind: str, said: Any) -> None:
    target = SCRIPTED[kind]()
    assert torch.equal(pycompiler.compile(target)(X), target(X))
    assert torch.equal(pycompiler.compile(lambda x: target(x * 2) + 1)(X), target(X * 2) + 1)
    if isinstance(target, nn.Module):
        assert any("TorchScript module: it runs uncompiled" in text for text in said())
        assert torch.equal(pycompiler.compile(nn.Sequential(target, nn.ReLU()))(X), target(X).relu())
        with pytest.raises(exc.ArgumentError, match="fullgraph"):
            pycompiler.compile(target, fullgraph=True)


# torch itself is replaced --------------------------------------------------------------------------------------
def replaced_uses(x: Any) -> Any:
    return torch.sin(x) + nn.functional.relu(x).cos() - (-x) * x[1:2] + (2 > x)


REPLACED = [
    (torch, "sin"), (nn.functional, "relu"), (torch.Tensor, "cos"), (torch.Tensor, "__add__"), (torch.Tensor, "__sub__"),
    (torch.Tensor, "__neg__"), (torch.Tensor, "__lt__"),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "name"), REPLACED, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_replaced_functions_and_methods_of_torch_are_called(owner: Any, name: str, backend: str) -> None:
    check_replaced(owner, name, backend)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_replaced_index_is_called(backend: str) -> None:
    """In a process of its own: CPython's slot stays afterwards, and eager's `torch.tensor([t])` then treats `t` as a
    sequence."""
    program = f"import torch; from tests.public_api.test_odd_uses import *; check_replaced(torch.Tensor, '__getitem__', {backend!r})"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([children.python(), "-c", program], cwd=root, check=True, timeout=300)


def check_replaced(owner: Any, name: str, backend: str) -> None:
    made = pycompiler.compile(replaced_uses, backend=backend)
    torch.testing.assert_close(made(X), replaced_uses(X))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, lambda x, *others: torch.mul(x, 7))
        changed = replaced_uses(X)
        torch.testing.assert_close(made(X), changed)
    torch.testing.assert_close(made(X), replaced_uses(X))
    assert not torch.equal(changed, replaced_uses(X))


def test_a_subclass_sees_no_operator_of_the_compiler() -> None:
    log: list[str] = []

    class Noting(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            log.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    made = pycompiler.compile(lambda x: (x + 1).sin())
    for _ in range(2):
        assert type(made(X.as_subclass(Noting))) is Noting
    assert log == ["add", "sin"] * 2


# modules that change after they were compiled ------------------------------------------------------------------
class Doubled(nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight * 2


@pytest.mark.parametrize("whose", ["wrapper", "original"])
def test_parametrizations_of_a_compiled_module(whose: str) -> None:
    original = nn.Linear(4, 4)
    made = pycompiler.compile(original, backend="eager")
    target = made if whose == "wrapper" else original
    plain_value = made(X).detach()
    bias = original.bias.detach()
    nn.utils.parametrize.register_parametrization(target, "weight", Doubled())
    torch.testing.assert_close(made(X), (plain_value - bias) * 2 + bias)
    torch.testing.assert_close(target.weight, original.weight)
    assert isinstance(made, nn.Linear)
    nn.utils.parametrize.remove_parametrizations(target, "weight")
    assert type(original) is nn.Linear
    assert made.__class__ is nn.Linear
    torch.testing.assert_close(made(X), (plain_value - bias) * 2 + bias)
    torch.testing.assert_close(copy.deepcopy(made)(X), made(X))


@pytest.mark.parametrize("wrap", [lambda module: pycompiler.compile(module, backend="eager"), pycompiler.disable])
def test_a_forward_around_that_of_a_compiled_module(wrap: Any) -> None:
    """Some libraries wrap a module's forward: the inner forward runs inside the wrapper, and is no call of the module."""

    def around(made: Any) -> Any:
        called: list[str] = []
        old = made.forward
        made.register_forward_hook(lambda *_: called.append("hook"))
        made.forward = lambda x: called.append("new") or old(x) + 1
        made._old_forward = old
        return made, called

    plain, compiled = around(nn.Linear(4, 4)), around(wrap(nn.Linear(4, 4)))
    compiled[0].load_state_dict(plain[0].state_dict())
    for _ in range(2):
        for how in ("__call__", "forward", "_old_forward"):
            assert torch.equal(getattr(compiled[0], how)(X), getattr(plain[0], how)(X))
            assert compiled[1] == plain[1]


def test_finalizers_of_objects_made_in_compiled_code_run() -> None:
    log: list[int] = []

    class Finalized:
        def __del__(self) -> None:
            log.append(1)

    def fn(x: Any) -> Any:
        held = Finalized()
        y = x + 1
        del held
        return y

    made = pycompiler.compile(fn, backend="eager")
    for _ in range(3):
        assert torch.equal(made(X), X + 1)
    gc.collect()
    assert len(log) == 3


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_global_module_hooks_see_the_users_modules_only(backend: str, grad: bool) -> None:
    seen: list[str] = []

    def hook(module: Any, args: Any, output: Any) -> Any:
        seen.append(type(module).__name__)
        return output + 1

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = X.clone().requires_grad_(grad)
    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        want = model(x)
        made = pycompiler.compile(model, backend=backend)
        for _ in range(2):
            torch.testing.assert_close(made(x), want)
    finally:
        handle.remove()
    assert set(seen) == {"Linear", "ReLU", "Sequential"}


# frames that the frame hook ignores -----------------------------------------------------------------------------
def test_generated_methods_belong_to_the_library_that_made_them() -> None:
    @dataclasses.dataclass
    class Mine:
        x: int

    assert inlining_rules.is_library(inspect.ClosureVars.__new__)
    assert inlining_rules.is_library(dis.Positions.__new__)
    assert inlining_rules.is_library(inspect.signature)
    assert not inlining_rules.is_library(Mine.__init__)
    assert not inlining_rules.is_library(plain)


def test_functions_with_odd_attributes() -> None:
    def inner(x: Any) -> Any:
        pycompiler.graph_break()
        return x * 2

    def outer(x: Any) -> Any:
        with open("/dev/null"):
            return inner(x) + 1

    for fn in (inner, outer):
        fn.__module__ = 3  # type: ignore[assignment]
        fn.__annotations__ = {"x": object()}
        fn.__wrapped__ = None  # type: ignore[attr-defined]
        fn.__signature__ = "none"  # type: ignore[attr-defined]
    assert torch.equal(pycompiler.compile(outer, backend="eager")(X), X * 2 + 1)
    assert torch.equal(pycompiler.compile(lambda x: inner(x) + 1, backend="eager")(X), X * 2 + 1)


def test_an_operator_that_fails_is_eagers_error_and_nothing_in_torchs_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has none of the lines of torch's shape functions before the error."""
    from torch._subclasses import fake_tensor

    told: list[str] = []
    monkeypatch.setattr(fake_tensor.log, "handle", lambda record: told.append(record.getMessage()))
    with pytest.raises(RuntimeError, match="got 4 and 5"):
        pycompiler.compile(lambda x: x.sin() @ torch.ones(5))(X)
    assert told == []
    with pytest.raises(RuntimeError), fake_tensor.FakeTensorMode():
        torch.ones(3) @ torch.ones(4)
    assert len(told) == 1 and "failed while attempting" in told[0]  # other fake modes log as before
