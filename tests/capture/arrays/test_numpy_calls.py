"""NumPy in captured programs compared with NumPy: values, dtypes, memory and graph breaks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from pycompiler import config
from pycompiler.operators import numpy_arrays
from tests.harness.compare import assert_same, assert_same_calls

RNG = np.random.RandomState(0)
X, Y = RNG.randn(6, 4), RNG.randn(6, 4)
INTS = RNG.randint(1, 9, (5,))
SINGLE = RNG.randn(4).astype(np.float32)
CLOSE = {torch.float32: 1e-6, torch.float64: 1e-12}


def kmeans(points: Any, centers: Any) -> Any:
    nearest = np.argmin(np.linalg.norm(points - centers[:, None], axis=2), axis=0)
    return np.stack([points[:, 0] * (nearest == k) for k in range(3)]), nearest


def in_place(x: Any) -> Any:
    x += 1
    x[2:4] = 7
    np.add(x, 1)
    x.sort(axis=0)
    return x


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "document": (lambda x, y: np.sum(x[:, :, None] * y[:, None, :], axis=(-2, -1)), (X, Y)),
    "kmeans": (kmeans, (X, X[:3].copy())),
    "numbers": (lambda x: x * 2.5 + np.float32(3) - np.sqrt(16), (X,)),
    "integers": (lambda x: (x // 2, x % 3, -x, x**2, 2 - x, 1 / x, x == 3, 3 > x, ~x, x << 1, np.sqrt(x), x.mean()), (INTS,)),
    "single": (lambda x: (x * 2.0, x + 1, np.exp(x), x * np.float64(2), x.sum(), x.astype(np.float64)), (SINGLE,)),
    "mixed": (lambda x, i: (x[:4] * i[:4, None], np.maximum(i, 2.5)), (X, INTS)),
    "in place": (in_place, (X,)),
    "views": (lambda x: (x.T, x[1:3], x.reshape(-1), x.reshape(2, 12), x[::2].copy(), x.transpose(1, 0), x.real), (X,)),
    "metadata": (lambda x: (x.shape, x.ndim, x.size, x.dtype, x.dtype == np.float64, x.strides, x.nbytes, len(x)), (X,)),
    "made": (lambda x: (np.zeros(4) + x, np.arange(4) * x, np.ones((2, 2), dtype=np.float32), np.array([1, 2]) + 1), (X[0],)),
    "linear algebra": (lambda x: (np.linalg.norm(x), x @ x.T, np.dot(x, x.T), np.linalg.inv(x.T @ x), np.trace(x)), (X,)),
    "choices": (lambda x, y: (np.where(x > y, x, y), np.clip(x, 0, 1), np.concatenate([x, y]), np.stack((x, y)).sum(0)), (X, Y)),
    "iteration": (lambda x: [row.sum() for row in x], (X,)),
    "tensors": (lambda t: torch.from_numpy(np.sin(t.numpy()) * 2), (torch.arange(4.0),)),
    "tensors of arrays": (lambda x: (torch.as_tensor(x) + 1, torch.tensor(x) + 1), (X,)),
    "dtypes": (lambda x: (x.astype(np.dtype("float32")), np.dtype("int64").itemsize, np.dtype(x.dtype) == np.float64), (X,)),
    "limits": (lambda x: (x + np.finfo(np.float32).eps, x.clip(0, np.iinfo("int8").max), np.finfo(x.dtype).tiny), (X,)),
    "limits beside tensors": (lambda t: t * float(np.finfo(np.float32).tiny) + np.iinfo(np.int16).min, (torch.ones(2),)),
    "kinds": (
        lambda x: (x, np.issubdtype(x.dtype, np.floating), np.issubdtype(float, np.integer), np.promote_types("f4", x.dtype)),
        (X,),
    ),
    "constants beside tensors": (lambda t: (t / np.sqrt(16), t * np.prod(t.shape), np.float32(2) * t), (torch.ones(4, 2),)),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_numpy_in_one_graph(name: str, backend: str) -> None:
    fn, args = PROGRAMS[name]
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    assert_same_calls(compiled, fn, lambda: copy.deepcopy(args), tolerance=CLOSE, absolute=0.0)
    assert pycompiler.counters(compiled)["compiles"] == 1


def swapped(a: Any) -> Any:
    t = a[0]
    a[0] = a[1]
    a[1] = t
    a[2], a[3] = a[3], a[2]
    for v in a:
        v += 1
    s = a.sum()
    r = s
    s += 1
    return r, s, a[0] == t, isinstance(t, float)


def shifted(a: Any, b: Any) -> Any:
    b[:] = a
    b += a
    return b


def copies(a: Any) -> Any:
    made = [a.flatten(), a.astype(a.dtype), +a, np.conj(a), a.copy(), np.array(a)]
    for i, m in enumerate(made):
        m[0] = 50 + i
    return made, a


def read_only(a: Any) -> Any:
    try:
        np.broadcast_to(a, (2, 4))[0] = 3
    except ValueError as e:
        return str(e), a
    return a


def stored(a: Any) -> Any:
    try:
        a[0] = 300
    except OverflowError as e:
        return str(e), a
    return a


HOSTILE: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "elements are numbers": (swapped, lambda: (np.arange(4.0),)),
    "overlapping arguments": (shifted, lambda: (lambda x: (x[:-1], x[1:]))(np.arange(5.0))),
    "transposed arguments": (shifted, lambda: (lambda x: (x.T, x))(np.arange(9.0).reshape(3, 3))),
    "copies": (copies, lambda: (np.arange(4.0),)),
    "read only": (read_only, lambda: (np.arange(4.0),)),
    "out of range": (stored, lambda: (np.arange(4, dtype="int8"),)),
    "flipped": (lambda a: (np.flip(a)[:1].__setitem__(0, 9), a[::-1], a), lambda: (np.arange(4.0),)),
    "dtypes": (lambda a: (np.where(a > 1, 0.1, a), (a > 1) ** 2, a.astype(float), np.zeros(2, dtype=int)), lambda: (np.arange(4),)),
    "containers": (lambda a: (np.split(a, 2), np.meshgrid(a, a), np.linalg.svd(a.reshape(2, 2)).S), lambda: (np.arange(4.0),)),
    "tensors of numbers": (lambda a: (torch.tensor([a[0], a[1]]), torch.ones(1) * a[1], round(a[1], 1)), lambda: (np.arange(4.0),)),
    "one place": (lambda a: a.__iadd__(1), lambda: (np.lib.stride_tricks.as_strided(np.ones(1), (4,), (0,)),)),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_numpy_does_and_tensors_do_not(name: str, backend: str) -> None:
    fn, make = HOSTILE[name]
    compiled = pycompiler.compile(fn, backend=backend)
    assert_same_calls(compiled, fn, make, tolerance=CLOSE, absolute=0.0)


def test_errors_that_numpy_was_told_to_raise() -> None:
    compiled = pycompiler.compile(lambda a: 1 / a)
    for _ in range(2):  # the second iteration finds an entry
        with np.errstate(all="raise"), pytest.raises(FloatingPointError):
            compiled(np.zeros(2))
        with np.errstate(all="ignore"):
            assert np.isinf(compiled(np.zeros(2))).all()


def test_memory_is_shared_and_objects_stay() -> None:
    def fn(x: Any) -> Any:
        same_object = np.asarray(x)
        part = x[1:]
        part += 1
        return same_object, part

    x = np.zeros(3)
    whole, part = pycompiler.compile(fn, fullgraph=True)(x)
    assert whole is x and part.base is not None and np.shares_memory(part, x) and x.tolist() == [0, 1, 1]


def test_what_changes_is_compiled_anew_and_what_no_tensor_can_be_runs_as_it_is() -> None:
    def fn(x: Any) -> Any:
        return x * 2

    compiled = pycompiler.compile(fn)
    frozen = np.ones(3)
    frozen.flags.writeable = False
    for x in (
        np.ones(3),
        SINGLE,
        X,
        np.ones(6)[::2],
        np.ones(6)[::-1],
        frozen,
        np.float64(3),
        np.ma.ones(3),
        np.ones(3, "u4"),
    ):
        want, got = fn(x), compiled(x)
        assert type(want) is type(got) and want.dtype == got.dtype and np.array_equal(want, got)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_the_sign_of_a_remainder_that_is_zero(dtype: str, backend: str) -> None:
    def fn(a: Any, b: Any) -> Any:
        return a % 3, a % -3, np.mod(a, b), divmod(a, b), np.remainder(a, 3.0)

    a = np.array([-0.0, 0.0, 3.0, -3.0, 6.0, -6.0, 1.0, -1.0]).astype(dtype)
    compiled = pycompiler.compile(fn, backend=backend)
    for b in (a + 7, a - 9):
        assert repr(compiled(a, b)) == repr(fn(a, b))


BACKWARDS: dict[str, Callable[[Any], Any]] = {
    "between": lambda a: a[2:0:-1],
    "to the second": lambda a: a[:0:-1],
    "from the first": lambda a: a[0::-1],
    "from the end": lambda a: (a[-2::-1], a[:-3:-1]),
    "the last dimension": lambda a: a.reshape(1, 2, -1)[..., ::-1],
    "a new dimension": lambda a: a[None, ::-1],
    "beside a list": lambda a: a.reshape(2, -1)[[1, 0], ::-1],
    "is a view": lambda a: (lambda v: (v.__setitem__(0, 7), v.strides, np.shares_memory(a, v), a))(a[::-1]),
    "of what is written": lambda a: (lambda v: (a.__setitem__(0, 7), v, v + 1))(a[::-1]),
    "is written": lambda a: (a.__setitem__(slice(None, 0, -1), a[1:] * 2), a),
    "in place": lambda a: (a.reshape(-1, 2)[::-1, 0].__iadd__(9), a),
    "a slice that is made": lambda a: (a[slice(None, None, -len(a) // 3)], a),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", BACKWARDS)
def test_slices_that_step_backwards(name: str, backend: str) -> None:
    """Slices with a negative step are views in NumPy. `torch._numpy` copies, and takes wrong elements for slices with bounds."""
    compiled = pycompiler.compile(BACKWARDS[name], backend=backend)
    for size in (6, 8, 6):
        want, got = BACKWARDS[name](np.arange(float(size))), compiled(np.arange(float(size)))
        assert repr(want) == repr(got)


@pytest.mark.parametrize("wrap", [pycompiler.wrap_numpy, torch.compiler.wrap_numpy], ids=["ours", "torch"])
def test_wrap_numpy_has_gradients(wrap: Any) -> None:
    def fn(x: Any, y: Any) -> Any:
        return np.mean(np.sum(x[:, :, None] * y[:, None, :], axis=(-2, -1)))

    x, y = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4)
    made = pycompiler.compile(wrap(fn), fullgraph=True)(x, y)
    made.backward()
    want = (x.sum(1) * y.sum(1)).mean()
    torch.testing.assert_close(made, want)
    torch.testing.assert_close(x.grad, torch.autograd.grad(want, x)[0])


def test_wrap_numpy_without_a_compiler() -> None:
    made = pycompiler.wrap_numpy(lambda x: np.sum(x) * np.ones(2))(torch.ones(3))
    assert isinstance(made, torch.Tensor) and made.tolist() == [3, 3]


def test_numpy_of_a_tensor_that_requires_grad_raises_as_eager() -> None:
    compiled = pycompiler.compile(lambda t: t.numpy() * 2)
    with pytest.raises(RuntimeError, match="requires grad"):
        compiled(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_numpy_of_a_tensor_that_requires_grad_where_gradients_are_off(backend: str) -> None:
    def fn(w: torch.Tensor) -> Any:
        with torch.no_grad():
            array = w.numpy()
            array += 1
        try:
            w.numpy()
        except RuntimeError as error:
            return array, np.sin(array), (w * w).sum(), str(error)

    made = []
    for run in (fn, pycompiler.compile(fn, backend=backend, fullgraph=True)):
        w = torch.ones(3, requires_grad=True)
        array, sines, total, error = run(w)
        total.backward()
        array += 1
        made.append((array.tolist(), sines.tolist(), w.tolist(), w.grad.tolist(), error))  # type: ignore[union-attr]
    assert made[0] == made[1]


def test_a_break_has_real_arrays() -> None:
    seen: list[Any] = []

    def fn(x: Any) -> Any:
        y = x * 2
        pycompiler.graph_break()
        seen.append(y)
        return y + 1

    assert_same(pycompiler.compile(fn)(X), fn(X), tolerance=CLOSE, absolute=0.0)
    assert [type(v) for v in seen] == [np.ndarray, np.ndarray]


def test_random_numbers_are_numpys_own() -> None:
    def fn(x: Any) -> Any:
        return x + np.random.rand(4)

    np.random.seed(3)
    want = fn(X)
    np.random.seed(3)
    assert_same(pycompiler.compile(fn)(X), want, tolerance=CLOSE, absolute=0.0)


def test_trace_numpy_off() -> None:
    with config.patch(trace_numpy=False):
        compiled = pycompiler.compile(lambda x: np.sin(x), fullgraph=True)
        with pytest.raises(pycompiler.exc.Unsupported):
            compiled(X)


# Per function: NumPy's dtype, shape and values, or no result at all.
DTYPES = "float64 float32 float16 int64 int32 int8 uint8 bool complex128 complex64".split()
UNSTEADY = {"linalg.eig", "linalg.eigh", "linalg.eigvals", "linalg.svd", "linalg.qr"}


def _data(dtype: str, shape: tuple[int, ...]) -> Any:
    random = np.random.RandomState(1)
    if dtype == "bool":
        return random.rand(*shape) > 0.5
    return (random.randn(*shape) * 3 + (1j * random.randn(*shape) if dtype.startswith("c") else 0)).astype(dtype)


def _outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception:
        return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [1, 2])
def test_each_function_gives_what_numpy_gives(count: int) -> None:
    tried = 0
    for fn, name in numpy_arrays._names().values():
        if name in UNSTEADY or (count == 2 and not isinstance(fn, np.ufunc)):
            continue
        for dtypes in [(d,) for d in DTYPES] if count == 1 else [(a, b) for a in DTYPES for b in DTYPES]:
            given = [_data(d, (4, 4)) for d in dtypes]
            ours = _outcome(numpy_arrays.function, name, *map(torch.from_numpy, given))
            if not isinstance(ours, torch.Tensor):
                continue
            want = np.asarray((getattr(np, name) if fn.__name__ in numpy_arrays.ALIKE else fn)(*given))
            got = ours.numpy(force=True)
            assert (want.dtype, want.shape) == (got.dtype, got.shape), (name, dtypes)
            close = 1e-10 if want.dtype in (np.float64, np.complex128) else 1e-2 if want.dtype == np.float16 else 1e-4
            assert np.allclose(want, got, close, close, equal_nan=True), (name, dtypes)
            tried += 1
    assert tried > 500


def test_arrays_like_tensors_and_moved_frequencies() -> None:
    def program(x: torch.Tensor) -> Any:
        shifted = np.fft.ifftshift(np.fft.fftshift(x.numpy()), axes=(0,))
        total = np.asarray(np.sum(x.numpy()))
        total_of = torch.from_numpy(total)
        total_of += 1
        return (
            np.ones_like(x, dtype=np.float64),
            np.full_like(x, 2.5, dtype=np.dtype("float")),
            shifted,
            total,
            total_of,
        )

    x = torch.arange(12.0).reshape(3, 4)
    got, want = pycompiler.compile(program, backend="eager", fullgraph=True)(x), program(x)
    for a, b in zip(got, want, strict=True):
        assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape
        assert a.tolist() == b.tolist()
