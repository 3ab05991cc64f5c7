"""Errors report the cause, the place, and the remedy."""

from __future__ import annotations

import pytest

from pycompiler import errors
from pycompiler.ir.guards import UserFrame

FRAME = UserFrame("model.py", 12, "forward", "if x.sum() > 0:")


def test_graph_break_shows_id_reason_hint_and_user_code() -> None:
    e = errors.Unsupported("data-dependent-jump", "branch on the value of a tensor: x", "use torch.where", [FRAME])
    assert str(e).splitlines() == [
        "graph break [data-dependent-jump]: branch on the value of a tensor: x",
        "  what to do: use torch.where",
        "  user code:",
        "    model.py:12 in forward",
        "        if x.sum() > 0:",
    ]


def test_internal_error_keeps_the_innermost_place() -> None:
    with pytest.raises(errors.InternalError) as caught:
        try:
            raise errors.CompileError("no rule for aten.foo").locate(operator="aten.foo.default")
        except errors.InternalError as e:
            raise e.locate(operator="outer", function="forward", filename="model.py", lineno=3) from None
    text = str(caught.value)
    assert "no rule for aten.foo" in text
    assert "while compiling function forward, model.py:3, operator aten.foo.default" in text
    assert "please report it" in text


def test_place_that_is_unknown_is_not_printed() -> None:
    assert "while compiling" not in str(errors.BackendError("backend returned None"))


def test_unknown_name_lists_the_known() -> None:
    assert str(errors.UnknownName.of("backend", "nativ", ["native", "eager"])) == (
        "unknown backend 'nativ' (did you mean 'native'?); known: eager, native"
    )


@pytest.mark.parametrize(
    ("error", "family"),
    [
        (errors.ConfigError, errors.UserError),
        (errors.UnknownName, errors.UserError),
        (errors.RecompileError, errors.UserError),
        (errors.RecompileLimitExceeded, errors.RecompileError),
        (errors.DoubleBackwardError, RuntimeError),
        (errors.CompileError, errors.InternalError),
        (errors.BackendError, errors.InternalError),
        (errors.Unsupported, errors.PyCompilerError),
    ],
)
def test_families(error: type[Exception], family: type[Exception]) -> None:
    assert issubclass(error, family)
    assert issubclass(error, errors.PyCompilerError)
