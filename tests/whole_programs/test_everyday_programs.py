"""Regressions of everyday programs with Python's and torch's libraries."""

from __future__ import annotations

import base64
import collections
import datetime
import importlib
import json
import logging
import struct
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import pycompiler
from tests.harness.compare import assert_same

BACKENDS = ("eager", "aot_eager", "native")


def through_dlpack(x: Any) -> Any:
    return torch.from_dlpack(x * 2) + 1


def through_a_capsule(x: Any) -> Any:
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x * 2)) + 1


@pytest.mark.parametrize("fn", [through_dlpack, through_a_capsule])
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_is_exported_of_real_tensors(fn: Callable[..., Any], backend: str) -> None:
    """A capsule of a fake tensor points to no memory: the graph ends before it."""
    compiled = pycompiler.compile(fn, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(3)), fn(torch.ones(3)))
    assert pycompiler.explain(fn)(torch.ones(3)).graph_break_count


def quiet(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("not shown", stacklevel=1)
        y = x + 1
    warnings.warn("shown", stacklevel=1)
    return y


def quiet_about_one(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.warn("future", FutureWarning, stacklevel=1)
        warnings.warn("user", stacklevel=1)
        warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
    return x * 2


def recorded_unseen(x: Any) -> Any:
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        warnings.warn("recorded", stacklevel=1)
        y = x + 1
    return y


@pytest.mark.parametrize("fn", [quiet, quiet_about_one, recorded_unseen])
@pytest.mark.parametrize("backend", BACKENDS)
def test_warnings_meet_the_filters_of_the_frame(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)

    def said(call: Callable[..., Any]) -> Any:
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter("always")
            result = call(torch.ones(2))
        return result.tolist(), [(str(w.message), w.category, w.lineno) for w in log]

    for _ in range(2):
        assert said(compiled) == said(fn)
    assert pycompiler.explain(fn)(torch.ones(2)).graph_count == 1


GIVEN = datetime.date(2020, 1, 2)
LOGGED = logging.getLogger("tests.survey")


def deletes(x: Any) -> Any:
    global MADE, KEPT
    MADE = 3
    y = x + MADE
    del MADE
    KEPT = 4
    try:
        MADE  # noqa: B018
    except NameError as error:
        return y, str(error)
    return y, None


def deletes_what_was_there(x: Any) -> Any:
    global KEPT
    y = x * KEPT
    del KEPT
    return y


def deletes_nothing(x: Any) -> Any:
    global NOBODY
    try:
        del NOBODY
    except NameError as error:
        return x + 1, str(error)
    return x


def shadows_a_builtin(x: Any) -> Any:
    global len
    len = str  # noqa: A001
    del len
    return x + len("abc")


def parsed(x: Any) -> Any:
    known = json.loads('{"scale": 2.5, "sizes": [1, 2, null]}')
    text = json.dumps({"b": [1, {"a": None}], "c": x.dim()}, sort_keys=True, indent=1)
    known["sizes"].append(4)
    return x * known["scale"] + sum(n or 0 for n in known["sizes"]), text, known


def dates(x: Any) -> Any:
    day = datetime.datetime(2020, 1, 2, 3, 4)
    step = datetime.timedelta(hours=36)
    later = day + step
    return x + (later - day).total_seconds() + day.weekday(), later.isoformat(), day < later, str(step), later


def packed(x: Any) -> Any:
    text = struct.pack("<if", 3, 0.5)
    code = base64.b64encode(zlib.compress(text))
    return x + struct.unpack("<if", zlib.decompress(base64.b64decode(code)))[1] + struct.calcsize("<if"), code


def imported(x: Any) -> Any:
    return x * importlib.import_module("math").pi


def logged(x: Any) -> Any:
    logging.warning("shape %s", tuple(x.shape))
    return x + 1


class Coded(ValueError):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}", code)
        self.code = code


def coded(x: Any) -> Any:
    try:
        raise Coded(3)
    except ValueError as error:
        return x + error.code, str(error), error.args  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "fn", [deletes, deletes_nothing, shadows_a_builtin, parsed, dates, packed, imported, logged, coded],
    ids=lambda fn: fn.__name__,
)  # fmt: skip
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        assert str(compiled(torch.ones(2))) == str(fn(torch.ones(2)))
    report = pycompiler.explain(fn)(torch.ones(2))
    assert (report.graph_count, report.graph_break_count) == (1, 0)


def test_a_deleted_global_is_gone() -> None:
    global KEPT
    compiled = pycompiler.compile(deletes_what_was_there, backend="eager", fullgraph=True)
    for value in (2, 2, 5):
        KEPT = value
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), float(value)))
        assert "KEPT" not in globals()
    with pytest.raises(NameError, match="'KEPT' is not defined"):
        pycompiler.compile(deletes_what_was_there, backend="eager")(torch.ones(2))
    compiled = pycompiler.compile(deletes, backend="eager", fullgraph=True)
    compiled(torch.ones(2))
    assert "MADE" not in globals() and KEPT == 4


def asks_today(x: Any) -> Any:
    return x + 1, GIVEN.strftime("%Y"), datetime.datetime.now().year


def test_what_a_date_asks_of_today_is_no_constant() -> None:
    compiled = pycompiler.compile(asks_today, backend="eager")
    for _ in range(2):
        assert str(compiled(torch.ones(2))) == str(asks_today(torch.ones(2)))


def test_records_are_made_behind_the_graph(caplog: pytest.LogCaptureFixture) -> None:
    compiled = pycompiler.compile(logged, backend="eager", fullgraph=True)
    for _ in range(2):
        compiled(torch.ones(2))
    assert [r.getMessage() for r in caplog.records] == ["shape (2,)"] * 2


def sized(x: Any) -> Any:
    y = x[1:] * 2
    z = y[1:]
    return y + x.untyped_storage().nbytes() + x.untyped_storage().size(), z.storage_offset(), len(z.untyped_storage())


def placed(x: Any) -> Any:
    return x + x.storage_offset(), x[1:].storage_offset()


@pytest.mark.parametrize("fn", [sized, placed])
@pytest.mark.parametrize("backend", BACKENDS)
def test_where_a_tensor_lies_is_guarded(fn: Callable[..., Any], backend: str) -> None:
    """No other guard compares the address: equal tensors may lie elsewhere, in memory of other sizes."""
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    memory = torch.arange(40.0)
    for x in (torch.ones(4), memory[:4], memory[3:7], memory[6:10], torch.ones(4), memory[3:7].clone()):
        assert str(compiled(x)) == str(fn(x))


def test_an_address_ends_the_graph() -> None:
    def shared(x: Any) -> Any:
        y = x.view(-1)
        return x + (y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr())

    compiled = pycompiler.compile(shared, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2, 2)), torch.full((2, 2), 2.0))


def covariance(x: Any) -> Any:
    return torch.cov(x), x.cov(correction=0), torch.cov(x[0]), torch.corrcoef(x), x[0].corrcoef(), torch.cov(x.int())


def of_complex(x: Any) -> Any:
    y = torch.complex(x, x.flip(0))
    return torch.cov(y), torch.corrcoef(y)


@pytest.mark.parametrize("fn", [covariance, of_complex])
@pytest.mark.parametrize("backend", BACKENDS)
def test_covariance(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    torch.manual_seed(0)
    for shape in ((3, 5), (3, 5), (4, 7), (2, 9)):
        x = torch.randn(shape)
        given, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, expected = compiled(given), fn(plain)
        torch.testing.assert_close(found, expected)
        torch.view_as_real(found[0] + 0j).pow(2).sum().backward()
        torch.view_as_real(expected[0] + 0j).pow(2).sum().backward()
        torch.testing.assert_close(given.grad, plain.grad)


def test_covariance_that_warns_is_eagers() -> None:
    few = pycompiler.compile(lambda x: torch.cov(x) + 1, backend="eager")
    with pytest.warns(UserWarning, match="degrees of freedom"):
        few(torch.ones(2, 1))


def likelihood(x: Any, var: Any) -> Any:
    return torch.nn.functional.gaussian_nll_loss(x, x + 1, var)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_that_looks_at_its_variances(backend: str) -> None:
    compiled = pycompiler.compile(likelihood, backend=backend, fullgraph=True)
    x = torch.arange(3.0)
    given, plain = (torch.full((3,), 0.5, requires_grad=True) for _ in range(2))
    for _ in range(2):
        torch.testing.assert_close(compiled(x, given), likelihood(x, plain))
    compiled(x, given).backward()
    likelihood(x, plain).backward()
    torch.testing.assert_close(given.grad, plain.grad)
    with pytest.raises(ValueError, match="negative"):
        compiled(x, torch.full((3,), -1.0, requires_grad=True))


def averaged(x: Any) -> Any:
    y = MODEL(x)
    with torch.no_grad():
        now = MODEL.state_dict()
        for name, kept in AVERAGE.state_dict().items():
            if kept.dtype.is_floating_point:
                kept.mul_(0.9).add_(now[name].detach(), alpha=0.1)
    return y


def states(x: Any) -> Any:
    return MODEL.state_dict(), x + 1


def loaded(x: Any) -> Any:
    AVERAGE.load_state_dict(MODEL.state_dict())
    return AVERAGE(x)


def with_attributes(x: Any) -> Any:
    made: Any = collections.OrderedDict(a=x + 1)
    made.kind, made.more = 3, x * 2
    return made, made.kind, hasattr(made, "other"), made.copy()


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))


MODEL, AVERAGE = model(), model()


@pytest.mark.parametrize("fn", [averaged, states, loaded, with_attributes], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
def test_states_of_modules(fn: Callable[..., Any], backend: str) -> None:
    def outcome(call: Callable[..., Any]) -> Any:
        for module, shift in ((MODEL, 1.0), (AVERAGE, 0.0)):
            module.load_state_dict(model().state_dict())
            for p in module.parameters():
                p.data.add_(shift)
        result = [call(torch.arange(12.0).reshape(4, 3)) for _ in range(2)]
        flat = [*result, *(v for r in result if isinstance(r, tuple) for v in r)]
        held = [(list(v), vars(v)) for v in flat if isinstance(v, collections.OrderedDict)]
        everything = result, held, MODEL.state_dict(), AVERAGE.state_dict()
        return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), everything)

    assert_same(outcome(pycompiler.compile(fn, backend=backend, fullgraph=True)), outcome(fn))
    report = pycompiler.explain(fn)(torch.ones(4, 3))
    assert (report.graph_count, report.graph_break_count) == (1, 0)
