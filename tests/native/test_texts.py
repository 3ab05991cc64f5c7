"""Names and representations that are invalid strings in messages, or no strings at all."""

from __future__ import annotations

from typing import Any

import pytest

from pycompiler import _native


def f(x: Any) -> Any:
    return x


@pytest.mark.parametrize("name", ["a\ud800", 5, None])
def test_a_name_that_is_no_text_is_none_in_messages(name: Any) -> None:
    call = _native.CompiledFunction(f, lambda *_: None, name=name)
    assert repr(call) == ("<CompiledFunction f>" if name is None else "<CompiledFunction ?>")
    call.set_mode("error")
    with pytest.raises(RuntimeError, match="nothing is compiled yet"):
        call(1)
    resumed = _native.CompiledFunction(f, lambda *_: None, positional=True, name=name)
    with pytest.raises(TypeError, match="takes exactly 1 positional argument"):
        resumed()


def test_a_name_that_is_no_text_while_somebody_watches() -> None:
    told: list[Any] = []
    entry = _native.Entry([], lambda x: x, "function")
    call = _native.CompiledFunction(f, lambda *_: entry, name="\udfff")
    _native.set_watcher(lambda *what: bool(told.append(what[0])) or True)
    try:
        assert (call(1), call(2)) == (1, 2)
    finally:
        _native.set_watcher(None)
    assert "call" in told


class Odd:
    def __repr__(self) -> str:
        return "\ud800"


def test_a_representation_that_is_no_text() -> None:
    with pytest.raises(TypeError, match="needs a Python function, not <unprintable>"):
        _native.CompiledFunction(Odd(), len)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs a Python function, not <unprintable>"):
        _native.Entry([], Odd(), "function")


def test_an_output_at_no_place_is_refused() -> None:
    entry = _native.Entry([], lambda *given: (1,), "plan", ("graph", -1))
    with pytest.raises(ValueError, match="bad output template"):
        _native.CompiledFunction(f, lambda *_: entry)(1)
