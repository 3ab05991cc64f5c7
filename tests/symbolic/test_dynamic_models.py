"""Models with changing sizes, forward and backward: two compiles (constants, then symbols), and eager's values."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pycompiler
from pycompiler import graphs
from pycompiler.symbolic import expr
from tests.harness.compare import assert_same


class Block(nn.Module):
    """A transformer block, with torch's attention operator or a spelled-out attention."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.whole = whole
        self.before, self.after = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, s, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        if self.whole:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = torch.full((s, s), float("-inf"), device=x.device).triu(1)
            attended = ((q @ k.transpose(-1, -2)) / (d // 2) ** 0.5 + mask).softmax(-1) @ v
        x = x + self.out(attended.transpose(1, 2).reshape(b, s, d))
        return x + self.mlp(self.after(x))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, 3, stride=2),
        )
        self.out = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.second(F.relu(self.norm(self.first(x)))), 2)
        return self.out(F.adaptive_avg_pool2d(x, 1).flatten(1))


def agree(model: nn.Module, backend: str, shapes: list[tuple[int, ...]]) -> int:
    """The number of compiles for calls with these shapes; values and gradients must match eager."""
    eager = copy.deepcopy(model)
    compiled = pycompiler.compile(model, backend=backend)
    for shape in shapes:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, want = compiled(ours), eager(theirs)
        assert_same(got, want, tolerance=1e-4)
        got.square().sum().backward()
        want.square().sum().backward()
        gradients = [[t.grad for t in (i, *m.parameters())] for i, m in ((ours, model), (theirs, eager))]
        assert_same(*gradients, tolerance=1e-3)
        model.zero_grad()
        eager.zero_grad()
    return pycompiler.counters(compiled)["compiles"]


LENGTHS = (16, 7, 24, 9, 33, 12, 5, 40, 21, 3, 64, 50, 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_transformer_block_takes_two_compiles_for_thirteen_lengths(backend: str) -> None:
    torch.manual_seed(0)
    assert agree(Block(whole=True), backend, [(2, n, 16) for n in LENGTHS]) == 2


def test_attention_that_is_spelled_out() -> None:
    torch.manual_seed(0)
    assert agree(Block(whole=False), "aot_eager", [(2, n, 16) for n in LENGTHS]) == 2


class Nests:
    """Counts of nests and of C++ functions in the graphs compiled inside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nests: list[int] = []
        self.parts: list[int] = []
        scheduled, generate = graphs.scheduled, graphs.cpp.generate

        def schedule(*args: Any) -> Any:
            made = scheduled(*args)
            self.nests.append(sum(len(k.nests) for k in made.kernels))
            return made

        def source(*args: Any) -> Any:
            made = generate(*args)
            self.parts.append(made.text.count("static PYC_PART void part"))
            return made

        monkeypatch.setattr(graphs, "scheduled", schedule)
        monkeypatch.setattr(graphs.cpp, "generate", source)

    def take(self) -> tuple[list[int], list[int]]:
        found = self.nests, self.parts
        self.nests, self.parts = [], []
        return found


FUSED: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: (x * 2).softmax(-1) + 1,
    "layer norm": lambda x: F.gelu(F.layer_norm(x, x.shape[-1:])),
    "sums": lambda x: (x.relu().sum(0), x.sum(1), (x * x).sum()),
    "cat": lambda x: torch.cat([x.sin(), x.cos()], -1) * 2,
    "broadcast": lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
}


@pytest.mark.parametrize("name", FUSED)
def test_symbolic_sizes_fuse_as_numbers_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Nests(monkeypatch)
    x = torch.randn(24, 40)
    pycompiler.compile(FUSED[name], dynamic=False)(x)
    of_numbers = found.take()[0]
    pycompiler.compile(FUSED[name], dynamic=True)(x)
    assert found.take()[0] == of_numbers


def test_many_nests_are_functions_of_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [x.sin() * 2 + x for x in xs]

    found = Nests(monkeypatch)
    compiled = pycompiler.compile(program, dynamic=True)
    for n in (8, 300, 700, 2):
        xs = [torch.randn(n + k, 129) for k in range(6)]
        torch.testing.assert_close(compiled(*xs), program(*xs))
    assert found.take() == ([6], [7])  # one function more, which runs on a thread team


def test_images_of_any_size() -> None:
    torch.manual_seed(0)  # sizes of one parity: torch 2.11's shape function of pooling guards on it
    assert agree(Images(), "aot_eager", [(2, 3, n, n + 3) for n in (20, 32, 12, 28, 44)]) == 2


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "one dimension": (nn.Conv1d(4, 6, 3, padding=1), (4, 10)),
    "depthwise": (nn.Conv1d(4, 4, 3, groups=4, dilation=2), (4, 10)),
    "two dimensions": (nn.Conv2d(4, 6, 3, stride=2), (4, 8, 9)),
    "one element": (nn.Conv2d(4, 6, 1, bias=False), (4, 8, 9)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), (4, 5, 6)),
    "three dimensions": (nn.Conv3d(2, 3, 2), (2, 4, 5, 4)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_batches_of_any_size_are_convolved_by_one_graph(name: str, backend: str) -> None:
    """ATen chooses another kernel from batch 16 on, but the sizes of the gradients do not depend on it."""
    module, shape = CONVOLUTIONS[name]
    compiled = pycompiler.compile(module, backend=backend)
    for n in (2, 3, 20, 5, 40):
        x = torch.randn(n, *shape, requires_grad=True)
        got, want = compiled(x), module(x)
        torch.testing.assert_close(got, want)
        mine, theirs = (torch.autograd.grad(y.sin().sum(), (x, *module.parameters())) for y in (got, want))
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
        assert [t.stride() for t in mine] == [t.stride() for t in theirs]
    assert pycompiler.counters(compiled)["compiles"] == 2


def test_two_sizes_that_change_one_after_the_other() -> None:
    torch.manual_seed(0)
    shapes = [(2, 8, 16), (2, 9, 16), (3, 9, 16), (4, 7, 16), (5, 30, 16)]
    assert agree(Block(whole=True), "aot_eager", shapes) == 3


def test_integer_arguments_that_change_reach_kernels() -> None:
    compiled = pycompiler.compile(lambda t, n: (t + n) * (n * 2 + 1), dynamic=True, fullgraph=True)
    t = torch.arange(6.0)
    for n in (5, 7, 9, 1000):
        assert torch.equal(compiled(t, n), (t + n) * (n * 2 + 1))
    assert pycompiler.counters(compiled)["compiles"] == 1


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_integers_below_zero_take_one_compile(backend: str, dynamic: bool | None) -> None:
    def fn(t: torch.Tensor, n: int) -> object:
        return t * n + n // 3, n, abs(n), (-n, n % 4, n < -5 or n > 5, divmod(n, 4))

    compiled = pycompiler.compile(fn, dynamic=dynamic, fullgraph=True, backend=backend)
    t = torch.arange(6.0)
    for n in (6, -7, -9, -6, -1000, 8, -(2**20), 2**20):
        result, expected = compiled(t, n), fn(t, n)
        assert torch.equal(result[0], expected[0]) and result[1:] == expected[1:]  # type: ignore[index]
    assert pycompiler.counters(compiled)["compiles"] == (3 if dynamic is None else 2)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_padding_cuts_off_no_more_than_there_is(first: int) -> None:
    """Padding may not cut off more than there is. torch's shape function does not check: 41 of 40 elements gave three zeros."""

    def fn(t: torch.Tensor, before: int, after: int) -> torch.Tensor:
        return torch.nn.functional.pad(t, (before, after))

    compiled = pycompiler.compile(fn, dynamic=True)
    t = torch.arange(40.0)
    calls = [(-5, 3), (-41, 3), (2, -41)]
    for before, after in (*calls[first:], *calls[:first], (-7, 5), (3, -4), (-40, 2)):
        if max(-before, -after) > 40:
            with pytest.raises(RuntimeError, match="narrow"):
                fn(t, before, after)
            with pytest.raises(RuntimeError, match="narrow"):
                compiled(t, before, after)
        else:
            assert torch.equal(compiled(t, before, after), fn(t, before, after))
    assert pycompiler.counters(compiled)["compiles"] >= 1


def test_numbers_that_the_program_wants_below_zero_are_numbers_there_only() -> None:
    compiled = pycompiler.compile(lambda t, n: t + n if n > 0 else t + len(range(n, 0)), dynamic=True)
    t = torch.arange(6.0)
    for n in (6, 7, -7, -9, 9):
        assert torch.equal(compiled(t, n), t + abs(n))
    assert pycompiler.counters(compiled)["compiles"] <= 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_integers_that_grow_too_big_are_refused_as_in_eager(backend: str) -> None:
    """Kernels compute in 64 bits: the cube of a large argument must not wrap around."""

    def fn(t: torch.Tensor, n: int) -> torch.Tensor:
        return t + n * n * n

    compiled = pycompiler.compile(fn, dynamic=True, backend=backend)
    t = torch.ones(2, dtype=torch.float64)
    for n in (3, 5, 1000, 2**21 - 1, 2**21, 2**40, 2**62, 2**63):
        try:
            expected = fn(t, n)
        except OverflowError:
            with pytest.raises(OverflowError):
                compiled(t, n)
        else:
            assert torch.equal(compiled(t, n), expected)


CUTS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "from": lambda x, n: x[n:] * 2,
    "to": lambda x, n: x[:n] * 2,
    "but the last": lambda x, n: x[:-n] * 2,
    "the last": lambda x, n: x[-n:] * 2,
    "columns": lambda x, n: x.t()[..., n:] * 3,
    "steps": lambda x, n: x[n::2] * 2,
    "a window": lambda x, n: x[n : n + 4] * 2,
    "narrow": lambda x, n: x.narrow(0, n, 4) * 2,
    "split": lambda x, n: x.split([n, 16 - n])[1] * 2,
    "row": lambda x, n: x[n] + x[:, 0].sum(),
    "written": lambda x, n: torch.zeros(16, 3).slice_scatter(x[:2] * 2, 0, n, n + 2),
    "a cache": lambda x, n: x.mul(2).index_fill(0, torch.arange(n, n + 2), 0.5)[: n + 1].sum(0),
}
ODD = (0, 2, 15, 16, 17, -1, -3, -17)


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "aot_eager") for name in CUTS), ("a window", "native"), ("written", "native")]
)
def test_integers_that_cut_tensors_of_known_sizes(name: str, backend: str) -> None:
    """C++ kernels for views cut by an integer must not make that integer a constant: values after the first share an entry."""
    compiled = pycompiler.compile(CUTS[name], dynamic=None, backend=backend)
    for n in (3, 4, 5, 7, 10, *(ODD if backend == "aot_eager" else ())):
        x, y = torch.arange(48.0).view(16, 3).requires_grad_(), torch.arange(48.0).view(16, 3).requires_grad_()
        try:
            want = CUTS[name](y, n)
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                compiled(x, n)
            continue
        got = compiled(x, n)
        assert torch.equal(got, want) and got.stride() == want.stride()
        got.square().sum().backward()
        want.square().sum().backward()
        assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]
        if n == 10:
            assert pycompiler.counters(compiled)["compiles"] == 2


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_views_that_leave_have_eagers_strides(backend: str) -> None:
    """The trace has stride `max(n, 1)` and the memory has stride n: a returned view must not be copied without gaps."""

    def fn(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        padded = F.pad(y, (y.shape[-1] // 3, -2))
        return torch.cat([y[..., y.shape[0] // 3 :], y], 1)[..., 2:], padded.select(1, -1)

    compiled = pycompiler.compile(fn, dynamic=True, backend=backend)
    for shape in ((6, 6), (3, 4), (7, 9), (6, 21)):
        y = torch.randn(shape)
        for got, want in zip(compiled(y), fn(y), strict=True):
            assert torch.equal(got, want) and got.stride() == want.stride()


def halves(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = (x[..., :].sin() * x.relu()).abs().mul(3).sign() * x
    return x.flatten() * 2


def turned(x: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        x = (x * 2 + 1).reshape(x.shape[2], x.shape[0], x.shape[1])
    return x


ODD_SIZES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slices": lambda x: halves(x[:, 3::2, 5::2]),
    "pools": lambda x: torch.nn.functional.lp_pool2d(x[None], 2, 3, stride=2),
    "shapes": lambda x: turned(x[:, 3::2, 5::2]),
}


@pytest.mark.parametrize("name", ODD_SIZES)
def test_indices_stay_short_where_sizes_are_quotients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Index expressions must stay short. An index that repeats the earlier one several times grows without bound."""
    intern = expr._intern

    def short(kind: str, key: str, *rest: Any) -> Any:
        assert len(key) < 50_000
        return intern(kind, key, *rest)

    monkeypatch.setattr(expr, "_intern", short)
    fallbacks = graphs.STATISTICS["aten_fallbacks"]
    fn = ODD_SIZES[name]
    compiled = pycompiler.compile(fn, dynamic=True)
    for n in (12, 15):
        x, again = (torch.arange(3.0 * n * 14, dtype=torch.float64).cos().view(3, n, 14).requires_grad_() for _ in "ab")
        got, want = compiled(x), fn(again)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), t) for y, t in ((got, x), (want, again))))
    assert compiled.counters()["compiles"] <= 2
    assert graphs.STATISTICS["aten_fallbacks"] == fallbacks


LAST = torch.channels_last
IN_CHANNELS_LAST: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...], tuple[int, ...], torch.dtype]] = {
    "to one element": (lambda x, w: torch.conv2d(x.to(memory_format=LAST), w, stride=2), (4, 2, 2), (6, 4, 2, 2), torch.float64),
    "to one of float32": (lambda x, w: torch.conv2d(x.to(memory_format=LAST), w), (4, 2, 2), (6, 4, 2, 2), torch.float32),
    "input": (lambda x, w: torch.conv2d(x.to(memory_format=LAST), w), (4, 8, 8), (6, 4, 3, 3), torch.float32),
    "weight": (lambda x, w: torch.conv2d(x, w.to(memory_format=LAST)), (4, 8, 8), (6, 4, 3, 3), torch.float32),
    "pointwise": (lambda x, w: torch.conv2d(x.to(memory_format=LAST), w), (4, 8, 8), (6, 4, 1, 1), torch.float32),
    "groups": (lambda x, w: torch.conv2d(x.to(memory_format=LAST), w, groups=2), (4, 8, 8), (6, 2, 3, 3), torch.float32),
    "transposed": (
        lambda x, w: torch.conv_transpose2d(x.to(memory_format=LAST), w, stride=2), (4, 8, 8), (4, 6, 3, 3), torch.float32,
    ),
    "double": (lambda x, w: torch.conv2d(x.to(memory_format=LAST), w), (4, 8, 8), (6, 4, 3, 3), torch.float64),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_CHANNELS_LAST)
def test_convolution_in_channels_last_compiles_once_more_for_all_batches(name: str) -> None:
    """Neither ATen's choice of backend by batch nor the batch itself may be assumed. torch's
    shape function has other strides than the kernel for results of one element each."""
    fn, shape, kernel, dtype = IN_CHANNELS_LAST[name]

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return fn(x * 2, w).sin()

    compiled = pycompiler.compile(program)
    w = torch.linspace(-1, 1, math.prod(kernel), dtype=dtype).view(kernel)
    for n in (2, 3, 16, 5, 40):
        x = torch.arange(n * math.prod(shape), dtype=dtype).cos().view(n, *shape)
        mine, others = ([t.clone().requires_grad_() for t in (x, w)] for _ in "ab")
        got, want = compiled(*mine), program(*others)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
        grads = [torch.autograd.grad(y.sin().sum(), ts) for y, ts in ((got, mine), (want, others))]
        torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)
    assert compiled.counters()["compiles"] == 2
