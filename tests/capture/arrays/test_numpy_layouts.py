"""Layouts of NumPy results, and views: a write through one array is visible in the arrays that share its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import pycompiler

BACKENDS = ("eager", "native")
inf, nan = np.inf, np.nan


def _lies(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(_lies, value))
    if isinstance(value, np.ndarray):
        strides = tuple(s for n, s in zip(value.shape, value.strides) if n > 1)
        return value.dtype, value.shape, strides, str(value.tolist())
    return repr(value)


def _given(n: int = 2, m: int = 3) -> tuple[Any, ...]:
    x = np.arange(n * m * 1.0).reshape(n, m) + 1
    return torch.ones(2), x, np.asfortranarray(x), (np.arange(n * m * 4.0) % 7).reshape(n, m, 4)


def elementwise(t: Any, x: Any, f: Any, c: Any) -> Any:
    d = c.transpose(2, 0, 1)
    return (f + x, x + f, f + f, f * 2, f**2, np.power(f, x), np.fmod(f, x + 1), f // (x + 1), f % (x + 1), f % (f + 1), -f,
            f > x, ~(f > 1), np.where(f > 1, f, x), np.clip(f, 0, 1), np.maximum(f, x), f[:, :1] + x, f + f[0], d + d,
            d + 1, np.sin(d), np.divmod(f, x + 1), f.astype("f4"), f.round(1), np.full_like(f, 2), t * 2)  # fmt: skip


def reduced(t: Any, x: Any, f: Any, c: Any) -> Any:
    d = c.T
    return (d.sum(0), d.mean(1), d.min(-1), np.max(d, 0), np.var(d, 0), d.std(1), np.all(d, 0), np.argmax(d, 0), d.argmin(1),
            np.linalg.norm(d, axis=0), np.average(d, 0), np.sum(f, axis=1, keepdims=True), t * 2)  # fmt: skip


def accumulated(t: Any, x: Any, f: Any, c: Any) -> Any:
    return (f.cumsum(0), f.cumsum(1), x.T.cumsum(0), np.cumprod(c.T, 1), np.diff(f, axis=0), np.sort(f, 0), f.argsort(0),
            t * 2)  # fmt: skip


def joined(t: Any, x: Any, f: Any, c: Any) -> Any:
    return (np.stack([f, f], -1), np.stack([f, x]), np.column_stack([f, f]), np.concatenate([f, f]), np.concatenate([f, x], 1),
            np.vstack([f, f]), np.hstack([f, f]), np.dstack([f, f]), np.array([f, f]), np.tile(f, (2, 1)), np.roll(f, 1, 0),
            np.repeat(f, 2, 0), np.meshgrid(f, f)[0], t * 2)  # fmt: skip


def multiplied(t: Any, x: Any, f: Any, c: Any) -> Any:
    return (f @ x.T, f @ f.T, np.matmul(c.T, c.T.transpose(0, 2, 1)), np.einsum("...i,...i", c.T, c.T), np.kron(f, f),
            np.einsum("ij,jk->ki", x, x.T), np.tensordot(f, f, 0), np.cross(c[..., :3], c[..., :3]), t * 2)  # fmt: skip


def solved(t: Any, x: Any, f: Any, c: Any) -> Any:
    two = f @ f.T + np.array([[3.0, 0], [0, 3]])
    return np.linalg.inv(two), np.linalg.cholesky(two), np.linalg.solve(two, f), t * 2


def taken(t: Any, x: Any, f: Any, c: Any) -> Any:
    i = np.array([0, 1])
    return x[:, [0, 1]], f[[0, 1]], f[:, i], c[:, i], c[:, [0, 1], :1], f[[0, 1], [1, 0]], np.take(f, [0, 1], 0), t * 2


def flat(t: Any, x: Any, f: Any, c: Any) -> Any:
    made = (f.ravel(), f.reshape(-1), f.T.reshape(-1), f.flatten(), x[:, 0].ravel(), x[:, ::2].ravel(), np.ravel(x[:, 1]),
            x[:, 0].reshape(-1), c.T.reshape(4, -1), f.copy(), np.copy(f), np.atleast_2d(x[:, 0]), np.squeeze(f))  # fmt: skip
    for i, y in enumerate(made):
        y *= i + 2
    return made, x, f, c, t * 2


def looked_at(t: Any, x: Any, f: Any, c: Any) -> Any:
    made = np.einsum("ij->ji", x), np.einsum("ii->i", x[:, :2]), np.einsum("ij,ij", x, f)
    x[0] = 9
    return made, t * 2


def written_through(t: Any, x: Any, f: Any, c: Any) -> Any:
    made = f + x, f.cumsum(0), np.stack([f, f], -1), x[:, [0, 1]], c.T.sum(0)
    for y in made:
        y.reshape(-1)[1] = 50
        y.ravel()[2] = 60
    return made, t * 2


ALL = (elementwise, reduced, accumulated, joined, multiplied, solved, taken, flat, looked_at, written_through)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", ALL)
def test_results_lie_as_numpys(fn: Any, backend: Any) -> None:
    compiled = pycompiler.compile(fn, backend=backend)
    for _ in range(2):
        assert _lies(compiled(*_given())) == _lies(fn(*_given()))


@pytest.mark.parametrize("fn", (elementwise, reduced, accumulated, joined, taken, flat))
def test_in_one_graph(fn: Any) -> None:
    assert pycompiler.explain(fn)(*_given()).graph_break_count == 0


def of_any_size(t: Any, x: Any, f: Any, c: Any) -> Any:
    return f + x, f * f, f.sum(0), f @ x.T, np.stack([f, f], -1), f.cumsum(0), f.ravel(), c.T.sum(0), t * 2


@pytest.mark.parametrize("sizes", (((2, 3), (4, 3), (5, 6), (7, 8)), ((300, 250), (301, 250), (320, 270))))
def test_of_sizes_that_change_and_large_ones(sizes: Any) -> None:
    compiled = pycompiler.compile(of_any_size, backend="eager")
    for n, m in sizes:
        assert _lies(compiled(*_given(n, m))) == _lies(of_any_size(*_given(n, m)))
    assert compiled.counters()["compiles"] == 3


def of_constants(t: Any) -> Any:
    i = np.nonzero([[1, 0], [2, 3]])[1]
    v = i.ravel()
    v[0] = 77
    return (i, v, np.rot90([[1.0, 2, 3], [4, 5, 6]]), np.array([[1, 2], [3, 4]], order="F"), np.flip([[1, 2], [3, 4]]),
            np.eye(2).T + 1, t * 2)  # fmt: skip


def places(t: Any, x: Any) -> Any:
    i = np.nonzero(x)[1]
    v = i.ravel()
    v[0] = 77
    return i, v, t * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_arrays_with_gaps_from_outside_of_a_graph(backend: Any) -> None:
    t, x = torch.ones(2), np.array([[1.0, 0], [2, 3]])
    for fn, args in ((of_constants, (t,)), (places, (t, x))):
        compiled = pycompiler.compile(fn, backend=backend)
        for _ in range(2):
            assert _lies(compiled(*args)) == _lies(fn(*args))


def spread(t: Any, x: Any, s: Any) -> Any:
    return (np.linspace(0, s, 3), np.linspace(s, 0, 3), np.linspace(0, inf, 3), np.linspace(-inf, 1, 4), np.linspace(s, s, 1),
            np.linspace(0, 1, 4, endpoint=False), np.linspace(0, s, 3, dtype=np.float32), np.linspace(0, 5, 4, dtype=int),
            np.linspace(0, x[0], 3), np.linspace(x[1], 2, 3), t * 2)  # fmt: skip


def slid(t: Any, x: Any, s: Any) -> Any:
    return (np.convolve(x, x), np.convolve(x[:3], x, "same"), np.convolve(x, x[:2], "valid"), np.convolve(x[:2], x),
            np.convolve(x, x[:1]), np.correlate(x, x, "full"), np.correlate(x, x), np.correlate(x[:2], x, "full"),
            np.correlate(x, x[:3], "same"), np.correlate(x[:2], x), np.correlate(x * 1j, x + 1j, "full"), t * 2)  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_infinities_and_nan(backend: Any) -> None:
    spreading, sliding = (pycompiler.compile(fn, backend=backend) for fn in (spread, slid))
    for s in (2.5, inf, -inf, nan, np.float64(inf)):
        given = torch.ones(2), np.array([inf, 0, 1]), s
        with np.errstate(all="ignore"):
            assert _lies(spreading(*given)) == _lies(spread(*given))
    for x in ([0.0, 2, 1, 4], [0, nan, 2, 3]):
        given = torch.ones(2), np.array(x), 0
        assert _lies(sliding(*given)) == _lies(slid(*given))
