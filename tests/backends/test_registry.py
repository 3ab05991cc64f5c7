"""Backends by name and by callable: their inputs, their allowed results, and the user's view of failures."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import backends, config, exc

X = torch.arange(4.0)


def fn(x: Any) -> Any:
    return (x.sin() + 1) * 2


pytestmark = pytest.mark.usefixtures("registry")


# names ---------------------------------------------------------------------------------------------------------
def test_list_backends() -> None:
    assert pycompiler.list_backends() == ["inductor", "native", "pycompiler"]
    debugging = {"eager", "eager_debug", "eager_noexcept", "pre_dispatch_eager"}
    traced = {"aot_eager", "aot_eager_decomp_partition", "aot_eager_default_partitioner"}
    assert set(pycompiler.list_backends(None)) == {*debugging, *traced, "inductor", "native", "pycompiler"}


@pytest.mark.parametrize("name", ["eager", "aot_eager", "native", "inductor", "pycompiler"])
def test_every_name_runs(name: str) -> None:
    made = pycompiler.compile(fn, backend=name)
    x = X.clone().requires_grad_()
    torch.testing.assert_close(made(x), fn(x))
    made(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * 2)


def test_tags_leave_names_out() -> None:
    pycompiler.register_backend(lambda gm, inputs: gm.forward, name="tagged", tags=("mine", "experimental"))
    pycompiler.register_backend(name="decorated", tags=("mine",))(lambda gm, inputs: gm.forward)
    assert "tagged" not in pycompiler.list_backends()
    assert "decorated" in pycompiler.list_backends()
    assert {"tagged", "decorated"} <= {*pycompiler.list_backends(None)} - {*pycompiler.list_backends(("mine",))}
    with pytest.raises(exc.UserError, match="sequence of strings"):
        pycompiler.register_backend(lambda gm, inputs: gm.forward, name="text", tags="mine")


def test_no_default_backend_is_native() -> None:
    pycompiler.set_default_backend("eager")
    pycompiler.set_default_backend(None)
    assert pycompiler.get_default_backend() == "native"


def test_register_and_default() -> None:
    seen: list[str] = []

    @pycompiler.register_backend
    def noisy(gm: Any, inputs: Any) -> Any:
        seen.append("noisy")
        return gm.forward

    @pycompiler.register_backend(name="other name")
    def nameless(gm: Any, inputs: Any) -> Any:
        seen.append("nameless")
        return gm.forward

    assert "noisy" in pycompiler.list_backends()
    pycompiler.compile(fn, backend="noisy")(X)
    pycompiler.compile(fn, backend="other name")(X)
    pycompiler.set_default_backend("noisy")
    assert pycompiler.get_default_backend() == "noisy"
    pycompiler.compile(fn)(X)
    pycompiler.set_default_backend(nameless)
    pycompiler.compile(fn)(X)
    assert seen == ["noisy", "nameless", "noisy", "nameless"]


def test_registry_errors() -> None:
    with pytest.raises(exc.InvalidBackend, match=r"'nope'.*aot_eager.*native"):
        pycompiler.set_default_backend("nope")
    with pytest.raises(exc.UserError, match="registered already"):
        pycompiler.register_backend(lambda gm, i: gm, name="native")
    with pytest.raises(exc.UserError, match="takes a callable"):
        pycompiler.register_backend(3, name="three")  # type: ignore[call-overload]
    with pytest.raises(exc.UserError, match="name is a string, got 3 of type int"):
        pycompiler.register_backend(lambda gm, i: gm, name=3)  # type: ignore[arg-type]


# inputs of a backend -------------------------------------------------------------------------------------------
def test_backend_gets_the_graph_and_the_real_tensors() -> None:
    got: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        got.append((gm, inputs))
        return gm.forward

    weight = torch.nn.Parameter(torch.ones(4))
    made = pycompiler.compile(lambda x: x * weight + 1, backend=backend)
    made(X)
    made(X + 1)  # the same entry
    [(gm, inputs)] = got
    assert isinstance(gm, torch.fx.GraphModule)
    assert {id(t) for t in inputs} == {id(X), id(weight)}
    assert [n.op for n in gm.graph.nodes].count("placeholder") == 2
    torch.testing.assert_close(gm(*inputs)[0], X + 1)


def test_backend_is_called_once_per_graph() -> None:
    calls: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        calls.append(gm)
        return gm.forward

    def broken(x: Any) -> Any:
        y = x.sin()
        pycompiler.graph_break()
        return y.cos()

    made = pycompiler.compile(broken, backend=backend)
    for _ in range(3):
        torch.testing.assert_close(made(X), X.sin().cos())
    assert len(calls) == 2


@pytest.mark.parametrize(
    "arguments, want",
    [
        ({}, {}),
        ({"mode": "default"}, {}),
        ({"mode": "reduce-overhead"}, {"mode": "reduce-overhead"}),
        ({"options": {"anything": 1}}, {"options": {"anything": 1}}),
        ({"options": {}}, {}),
    ],
)
def test_mode_and_options_are_passed(arguments: Any, want: Any) -> None:
    got: dict[str, Any] = {}

    def backend(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        got.update(kwargs)
        return gm.forward

    pycompiler.compile(fn, backend=backend, **arguments)(X)
    assert got == want


def test_options_of_ours_hold_during_the_compile() -> None:
    seen: list[bool] = []
    original = backends.REGISTRY["native"]

    def spy(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        seen.append(config.deterministic)
        return original(gm, inputs, **kwargs)

    backends.REGISTRY["native"] = spy
    pycompiler.compile(fn, options={"deterministic": True})(X)
    pycompiler.compile(fn)(X)
    assert seen == [True, False]
    assert config.deterministic is False


def test_callable_objects_and_modules_as_results() -> None:
    class Backend:
        def __call__(self, gm: Any, inputs: Any) -> Any:
            return gm  # a GraphModule is callable

    torch.testing.assert_close(pycompiler.compile(fn, backend=Backend())(X), fn(X))


def test_lists_and_single_tensors_are_accepted() -> None:
    torch.testing.assert_close(pycompiler.compile(fn, backend=lambda gm, i: lambda *a: list(gm(*a)))(X), fn(X))
    torch.testing.assert_close(pycompiler.compile(fn, backend=lambda gm, i: lambda *a: gm(*a)[0])(X), fn(X))


# failures ------------------------------------------------------------------------------------------------------
class OwnError(Exception):
    pass


def raising(gm: Any, inputs: Any) -> Any:
    raise OwnError("mine", 3)


def test_exception_of_the_backend_reaches_the_user_unchanged() -> None:
    made = pycompiler.compile(fn, backend=raising)
    for _ in range(2):
        with pytest.raises(OwnError) as caught:
            made(X)
        assert caught.value.args == ("mine", 3)
        assert caught.traceback[-1].name == "raising"


def test_exception_of_the_compiled_graph_reaches_the_user_unchanged() -> None:
    def backend(gm: Any, inputs: Any) -> Any:
        return lambda *a: raising(gm, a)

    with pytest.raises(OwnError):
        pycompiler.compile(fn, backend=backend)(X)


@pytest.mark.captures_nothing("the backend raises, and the frame runs as written")
def test_suppress_errors_runs_the_frame_eagerly(caplog: Any) -> None:
    with config.patch(suppress_errors=True):
        made = pycompiler.compile(fn, backend=raising)
        with caplog.at_level(logging.WARNING, "pycompiler"):
            torch.testing.assert_close(made(X), fn(X))
            torch.testing.assert_close(made(X), fn(X))


@pytest.mark.parametrize("result", [None, 3, "forward", ()], ids=repr)
def test_result_that_is_not_callable(result: Any) -> None:
    def useless(gm: Any, inputs: Any) -> Any:
        return result

    with pytest.raises(exc.BadBackendResult) as caught:
        pycompiler.compile(fn, backend=useless)(X)
    text = str(caught.value)
    assert "'useless'" in text
    assert repr(result) in text
    assert "callable" in text
    assert "gm.forward" in text


@pytest.mark.parametrize("result", [(), (X, X), None, 3, [X, X, X]], ids=["none", "two", "None", "int", "three"])
def test_wrong_outputs(result: Any) -> None:
    def wrong(gm: Any, inputs: Any) -> Any:
        return lambda *a: result

    with pytest.raises(exc.BadBackendResult, match=r"wrong.* returned .*expected a tuple of the graph's 1 outputs"):
        pycompiler.compile(fn, backend=wrong)(X)


def test_interrupted_backend_leaves_the_callable_usable() -> None:
    import signal

    armed = [True]

    def backend(gm: Any, inputs: Any) -> Any:
        if armed:
            armed.clear()
            signal.raise_signal(signal.SIGINT)
        return gm.forward

    made = pycompiler.compile(fn, backend=backend)
    with pytest.raises(KeyboardInterrupt):
        made(X)
    torch.testing.assert_close(made(X), fn(X))
    assert pycompiler.counters(made)["compiles"] == 1


def test_system_exit_and_stop_iteration_of_a_backend() -> None:
    for error in (SystemExit(3), StopIteration(), GeneratorExit()):

        def backend(gm: Any, inputs: Any, error: BaseException = error) -> Any:
            raise error

        with pytest.raises(type(error)):
            pycompiler.compile(fn, backend=backend)(X)


def test_recursive_use_of_the_compiler_inside_of_a_backend() -> None:
    inner = pycompiler.compile(fn, backend="eager")

    def backend(gm: Any, inputs: Any) -> Any:
        inner(X)
        return gm.forward

    torch.testing.assert_close(pycompiler.compile(fn, backend=backend)(X), fn(X))


# internal errors -----------------------------------------------------------------------------------------------
def test_internal_error_becomes_a_warning_and_the_frame_runs_eagerly(caplog: Any) -> None:
    def failing(gm: Any, inputs: Any) -> Any:
        raise KeyError("a bug of ours")

    backends.REGISTRY["native"] = failing
    made = pycompiler.compile(fn)
    logging.getLogger("pycompiler").propagate = True
    with config.patch(raise_internal_errors=False), caplog.at_level(logging.WARNING, "pycompiler"):
        for _ in range(2):
            torch.testing.assert_close(made(X), fn(X))
    [record] = [r for r in caplog.records if "runs eagerly" in r.getMessage()]
    text = record.getMessage()
    for part in ("fn runs eagerly", "a bug of ours", "test_registry.py", "not your program"):
        assert part in text, text
    with pytest.raises(exc.InternalTorchDynamoError, match="KeyError"):
        pycompiler.compile(fn)(X)


def test_internal_error_in_the_capture_names_function_file_line_and_operator(monkeypatch: Any) -> None:
    from pycompiler.capture.interpreter.evaluation import HANDLERS

    def bug(frame: Any, instruction: Any) -> None:
        raise IndexError("a bug in a handler")

    monkeypatch.setitem(HANDLERS, "UNARY_NEGATIVE", bug)

    def negate(x: Any) -> Any:
        return -x

    with pytest.raises(exc.InternalError) as caught:
        pycompiler.compile(negate, backend="eager")(X)
    line = negate.__code__.co_firstlineno + 1
    assert f"function negate, {__file__}:{line}, operator UNARY_NEGATIVE" in str(caught.value)
    with config.patch(raise_internal_errors=False):
        torch.testing.assert_close(pycompiler.compile(negate, backend="eager")(X), -X)
