"""In-place writes to tensor subclasses with inner tensors: one graph, with eager's values, identities, versions and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import pycompiler
from tests.harness.compare import assert_same

BACKENDS = ("eager", "aot_eager", "native")
Program = Callable[[Any, torch.Tensor], Any]
PROGRAMS: dict[str, tuple[bool, Program]] = {}
"""Whether the graph is whole, and the program, over a subclass instance and a plain tensor."""


def program(*, whole: bool = True) -> Callable[[Program], None]:
    return lambda fn: PROGRAMS.update({fn.__name__: (whole, fn)})


@program()
def an_input(x: Any, p: torch.Tensor) -> Any:
    x.add_(1)
    x.mul_(p)
    return x * 2


@program()
def a_result(x: Any, p: torch.Tensor) -> Any:
    y = x * 2
    z = y.mul_(3)
    return y.cos(), z is y


@program()
def through_a_view(x: Any, p: torch.Tensor) -> Any:
    x.view(-1).mul_(2)
    return x + 1


@program()
def what_is_inside_is_read(x: Any, p: torch.Tensor) -> Any:
    before = x.a * 1
    x.add_(1)
    return x.a * 2, before, x


@program()
def what_is_inside_is_written(x: Any, p: torch.Tensor) -> Any:
    x.a.add_(1)
    return x * 2


@program()
def of_itself(x: Any, p: torch.Tensor) -> Any:
    x.copy_(x * 2)
    return x.sum()


@program()
def beside_a_plain_tensor(x: Any, p: torch.Tensor) -> Any:
    p.add_(1)
    x += p
    return p * 1


@program()
def nothing_else(x: Any, p: torch.Tensor) -> Any:
    x.add_(1)


@program()
def without_grad_mode(x: Any, p: torch.Tensor) -> Any:
    with torch.no_grad():
        x.add_(1)
    return x * 2


@program()
def a_result_of_gradients(x: Any, p: torch.Tensor) -> Any:
    y = x * p.sum()
    y.add_(x)
    return y.sin()


@program()
def many(x: Any, p: torch.Tensor) -> Any:
    x.zero_()
    x.fill_(2)
    return x.relu_() * p


@program()
def what_counts_no_versions(x: Any, p: torch.Tensor) -> Any:
    x.data.add_(1)
    return x * 2


@program()
def a_part(x: Any, p: torch.Tensor) -> Any:
    x[0] = 5.0
    return x * 1


@program()
def out(x: Any, p: torch.Tensor) -> Any:
    return torch.add(x, 1, out=x) * 2


@program(whole=False)
def how_it_lies(x: Any, p: torch.Tensor) -> Any:
    x.t_()
    return x * 2


def observed(run: Callable[..., Any], n: int, grad: bool, shared: bool) -> Any:
    """The observable outcome of a call and its backward; an error is represented by its message."""
    x: Any = TwoTensor(torch.arange(3.0 * n).view(n, 3) / 9, torch.arange(3.0 * n).view(n, 3) / 90)
    p = x.a if shared else torch.arange(3.0)
    if grad:
        x.requires_grad_()
    counted = (x, x.a, x.b, p)
    versions = [t._version for t in counted]
    try:
        made = run(x, p)
        results = made if isinstance(made, tuple) else (made,)
        wanted = [t.sum() for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
        if wanted:
            sum(wanted).backward()  # type: ignore[union-attr]
    except RuntimeError as e:
        return str(e)[:40]
    return x, p, results, [t._version > v for t, v in zip(counted, versions, strict=True)]


@pytest.fixture
def keys_put_back() -> Iterator[None]:
    """`t_` of torch's TwoTensor leaves a dispatch key (Dense, of the meta device) in the thread, in eager as well."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        yield


@pytest.mark.usefixtures("keys_put_back")
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "one inside of the other"])
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_gives_what_eager_gives(name: str, backend: str, grad: bool, shared: bool) -> None:
    whole, fn = PROGRAMS[name]
    compiled = pycompiler.compile(fn, backend=backend)
    for n in (3, 3, 2):
        got, want = observed(compiled, n, grad, shared), observed(fn, n, grad, shared)
        assert_same(got, want)
    if whole and not isinstance(want, str):
        observed(pycompiler.compile(fn, backend=backend, fullgraph=True), 3, grad, shared)
        assert compiled.counters()["compiles"] == 2


class Swapped(TwoTensor):
    """A subclass whose in-place write replaces the inner tensors."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.add_.Tensor:
            args[0].a, args[0].b = args[0].a + args[1], args[0].b + args[1]
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_class_that_writes_otherwise_is_left_to_eager(backend: str) -> None:
    def fn(x: Any) -> Any:
        x.add_(1)
        return x.a * 2

    compiled = pycompiler.compile(fn, backend=backend)
    for _ in range(2):
        x, y = (Swapped(torch.ones(3), torch.ones(3)) for _ in range(2))
        assert torch.equal(compiled(x), fn(y)) and torch.equal(x.a, y.a)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_tensors(backend: str) -> None:
    _, fn = PROGRAMS["an_input"]
    with torch.inference_mode():
        compiled, found = pycompiler.compile(fn, backend=backend), []
        for run in (compiled, fn):
            x: Any = TwoTensor(torch.ones(2, 3), torch.ones(2, 3))
            found.append([run(x, torch.arange(3.0)), x])
    assert_same(*found)


class Around(torch.Tensor):
    """A subclass whose operators are Python functions; its hook calls them where a graph breaks."""

    a: torch.Tensor

    @staticmethod
    def __new__(cls, a: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype)  # type: ignore[attr-defined]

    def __init__(self, a: torch.Tensor) -> None:
        self.a = a

    def __tensor_flatten__(self) -> Any:
        return ["a"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return Around(inner["a"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        return Around(func(*(t.a if isinstance(t, Around) else t for t in args)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_below_the_count_of_versions_are_made(backend: str) -> None:
    def fn(x: Any) -> Any:
        with torch.inference_mode():
            y = x * 1
            y.add_(1)
        return y.a * 1

    compiled = pycompiler.compile(fn, backend=backend)
    for n in (2, 2, 3):
        torch.testing.assert_close(compiled(Around(torch.ones(n))), torch.full((n,), 2.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kernel_in_python_writes(backend: str) -> None:
    with torch.library._scoped_library("written_by_python", "DEF") as library:
        library.define("more_(Tensor(a!) x) -> ()")

        def kernel(x: torch.Tensor) -> None:
            x.add_(1)

        library.impl("more_", kernel, "CPU")

        def fn(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            torch.ops.written_by_python.more_(y)
            return y * 1

        compiled = pycompiler.compile(fn, backend=backend)
        for n in (2, 2, 3):
            torch.testing.assert_close(compiled(torch.ones(n)), torch.full((n,), 3.0))
