"""Programs that are compiled and saved in one process, and loaded in another: see `processes.py`.

Each `Case` creates an object to compile, and gives a list of calls on it; a call returns tensors and plain values.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import dataclasses
import enum
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.optim.radam import radam
from torch.utils.checkpoint import checkpoint

import pycompiler

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples"))
from models.gpt import GPT, Config


@dataclass(frozen=True)
class Case:
    """`make()` gives a function or module; `calls` use the compiled one."""

    make: Callable[[], Any]
    calls: list[Callable[[Any], Any]]
    entries: int = 1
    left_out: str = ""  # a part of the reason why it is not saved
    dynamic: bool | None = None
    knobs: dict[str, Any] = field(default_factory=dict)  # during the compile


CASES: dict[str, Case] = {}


def case(
    *calls: Callable[[Any], Any], entries: int = 1, left_out: str = "", dynamic: bool | None = None, **knobs: Any
) -> Callable[[Any], Any]:
    def register(make: Any) -> Any:
        CASES[make.__name__] = Case(make, list(calls), entries, left_out, dynamic, knobs)
        return make

    return register


def data(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(result: Tensor, module: nn.Module) -> list[Tensor]:
    result.sum().backward()
    found = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    return [result.detach(), *found]


# values and guards --------------------------------------------------------------------------------------------------
def pointwise(x: Tensor, scale: float = 2.0, *, kind: str = "gelu") -> dict[str, Any]:
    return {"y": F.gelu(x) * scale if kind == "gelu" else x, "n": x.shape[0], "t": (x + 1, [1, "two", None])}


@case(lambda f: f(data(4, 5)), lambda f: f(data(4, 5), 3.0), lambda f: f(data(6, 5), kind="no"), entries=3)
def arguments() -> Any:
    return pointwise


@case(lambda f: f(data(2, 8, 16)))
def transformer_layer() -> Any:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()


def tokens(seed: int) -> Tensor:
    return torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(seed))


@case(lambda f: gradients(f(tokens(0), tokens(1)), f), lambda f: f(tokens(2)).detach(), entries=2)
def gpt() -> Any:
    torch.manual_seed(0)
    return GPT(Config(layers=1, width=32, length=16))


@case(lambda f: gradients(f(data(2, 3, 8, 8)), f))
def convnet() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


@case(lambda f: f(data(2, 8))[0].detach())
def cell() -> Any:
    """Quirk of torch: `torch._VF` is an instance of a class that its module hides."""
    torch.manual_seed(0)
    return nn.LSTMCell(8, 16)


@case(lambda f: gradients(f(data(3, 2, 8))[0], f), lambda f: gradients(f(data(5, 2, 8))[0], f), entries=2)
def lstm() -> Any:
    """Weak references in a list lead to its parameters."""
    torch.manual_seed(0)
    return nn.LSTM(8, 4, 2)


@case(lambda f: gradients(f(data(2, 3, 8))[0], f))
def gru() -> Any:
    torch.manual_seed(0)
    return nn.GRU(8, 4, batch_first=True, bidirectional=True)


@case(lambda f: gradients(f(data(3, 2, 8))[0], f))
def rnn() -> Any:
    torch.manual_seed(0)
    return nn.RNN(8, 4)


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x).relu()
        return features, self.head(features)


def by_features(f: Any) -> list[Tensor]:
    features, scores = f(data(4, 8))
    inner = torch.autograd.grad(scores.exp().sum(), features, retain_graph=True)
    return [*inner, *gradients(features.sum() + scores.sum(), f)]


@case(by_features)
def features() -> Any:
    """Two autograd nodes; one consumes the result of the other."""
    torch.manual_seed(0)
    return Features()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x)[0]


@case(lambda f: gradients(f(data(2, 5, 16)), f))
def attention() -> Any:
    torch.manual_seed(0)
    return Attention()


def starts(x: Tensor, names: tuple[str, ...] = ("a.x", "b.x", "a.y")) -> Tensor:
    return x * sum(map("a.x.y".startswith, names))


@case(lambda f: f(data(3)))
def methods_of_texts() -> Any:
    return starts


def takes(x: Tensor, f: Any = pointwise) -> Tensor:
    return x + len(inspect.signature(f).parameters) if "kind" in inspect.signature(f).parameters else x


@case(lambda f: f(data(3)))
def signatures() -> Any:
    return takes


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 300, 8))

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        self.keys.index_copy_(1, pos, x)
        return (x @ self.keys.transpose(1, 2)).softmax(-1) @ self.keys


@torch.no_grad()
def decoded(f: Any) -> list[Tensor]:
    return [f(data(2, 1, 8, seed=n), torch.tensor([n])) for n in range(3)] + [f.keys]


@case(decoded)
def static_cache() -> Any:
    """Written in place (`lowering/partial_updates.py`)."""
    return Decoder()


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state = [data(4, 3), torch.zeros(4, 3), torch.zeros(4, 3), torch.tensor(0.0)]

    def forward(self, grad: Tensor) -> Tensor:
        weight, *averages, step = self.state
        kept = {"beta1": 0.9, "beta2": 0.99, "lr": 0.1, "weight_decay": 0.0, "eps": 1e-8}
        radam([weight], [grad], *([a] for a in averages), [step], foreach=False, **kept)
        return weight.clone()


def stepped(f: Any) -> list[Tensor]:
    return [f(data(4, 3, seed=n)) for n in range(8)]


@case(stepped, entries=2)
def rectified() -> Any:
    """A number in a tensor decides (the guard "data"): from the sixth step on another branch runs."""
    return Trained()


class Point(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Pair:
    first: Tensor
    second: Any


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Kind(str, enum.Enum):
    PLAIN = "plain"
    SQUARE = "square"


@dataclass(frozen=True)
class Settings:
    slope: float = 0.1
    names: tuple[str, ...] = ("a", "b")


SETTINGS = Settings()
LEAKY = lambda x: F.leaky_relu(x, SETTINGS.slope)  # noqa: E731


def with_classes(p: Point, pair: Pair, colour: Colour, kind: Kind) -> tuple[Any, ...]:
    y = LEAKY(p.x) if colour is Colour.RED else p.y
    z = y * y if kind is Kind.SQUARE else y
    return Pair(z + pair.first, len(SETTINGS.names)).first, Point(z, p.y), colour is Colour.BLUE


def points() -> tuple[Any, ...]:
    return Point(data(3), data(3, seed=1)), Pair(data(3, seed=2), None)


@case(lambda f: f(*points(), Colour.RED, Kind.SQUARE), lambda f: f(*points(), Colour.BLUE, Kind.PLAIN), entries=2)
def classes() -> Any:
    return with_classes


def abstract(x: Any) -> Any:
    if isinstance(x, collections.abc.Mapping):
        return x["a"] + 1
    return x + 2


class Bag:
    def __init__(self, t: Tensor) -> None:
        self.t = t

    def __add__(self, n: int) -> Tensor:
        return self.t + n


@case(lambda f: f(Bag(data(3))), lambda f: f({"a": data(3)}), entries=2)
def abstract_classes() -> Any:
    return abstract


def constants_inside(x: Tensor) -> Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0]) + torch.arange(3) + math.pi


@case(lambda f: f(data(2, 3)))
def constants() -> Any:
    return constants_inside


@functools.lru_cache
def table(n: int) -> tuple[int, ...]:
    return tuple(range(n))


def cached(x: Tensor) -> Tensor:
    return x + len(table(4)) + table(4)[2]


@case(lambda f: f(data(3)))
def lru_cached() -> Any:
    return cached


def decorated(fn: Any) -> Any:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs) + 1

    return inner


@decorated
def shifted(x: Tensor) -> Tensor:
    return x.sin()


@torch.no_grad()
def quiet(x: Tensor) -> Tensor:
    return shifted(x) * 2


@case(lambda f: f(data(3)))
def decorators() -> Any:
    return lambda x: quiet(x) + shifted(x)


# closures and state -------------------------------------------------------------------------------------------------
def make_closure(n: int, t: Tensor) -> Any:
    count = 0

    def inner(x: Tensor) -> Tensor:
        nonlocal count
        count += n
        return x * n + t

    inner.count = lambda: count  # type: ignore[attr-defined]
    return inner


@case(lambda f: (f(data(3)), f(data(3)), f.count()), entries=2)
def closure() -> Any:
    return make_closure(3, data(3, seed=5))


def gives_function(x: Tensor) -> Any:
    y = x + 1

    def later(z: Tensor) -> Tensor:
        return y * z

    return later


@case(lambda f: f(data(3))(data(3, seed=1)))
def makes_a_function() -> Any:
    return gives_function


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.names: list[str] = []
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.detach().abs())
        self.names.append("call")
        self.last = x.shape
        return x * self.seen


def counted(f: Any) -> Any:
    x = data(3).requires_grad_()
    y = f(x)
    y.sum().backward()
    return y.detach(), x.grad, f.seen.clone(), list(f.names), tuple(f.last)


@case(counted, entries=1)
def buffers() -> Any:
    return Counting()


def fills(x: Tensor, out: list[Tensor], into: dict[str, Any]) -> None:
    out.append(x + 1)
    into["n"] = x.sum()
    x.mul_(2)


def filled(f: Any) -> Any:
    x, out, into = data(3), [data(3)], {"m": 1}
    f(x, out, into)
    return x, out, into


@case(filled)
def effects() -> Any:
    return fills


def writes(a: Tensor, b: Tensor) -> Tensor:
    a.add_(1)
    return a * b


def sharing(f: Any) -> Any:
    a, b = data(4), data(4, seed=1)
    whole = data(5)
    return f(a, b), a, f(whole[:4], whole[1:]), whole


@case(sharing)
def shared_memory() -> Any:
    return writes


# gradients ----------------------------------------------------------------------------------------------------------
class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, power: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.power = power
        return x**power

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * x * ctx.power, None


def through_a_function(x: Tensor) -> Tensor:
    return Cubed.apply(x.sin(), 3) * 2


def its_own_gradient(f: Any) -> Any:
    x = data(4).requires_grad_()
    y = f(x)
    return y.detach(), *torch.autograd.grad(y.sum(), x)


@case(its_own_gradient)
def autograd_function() -> Any:
    """torch creates a class for it, which only the Function refers to."""
    return through_a_function


def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x * y).exp(), x.sin() + y


def both(f: Any, which: tuple[int, ...]) -> list[Any]:
    x, y = data(3).requires_grad_(), data(3, seed=1).requires_grad_()
    outs = f(x, y)
    sum(outs[k].sum() for k in which).backward()
    return [x.grad, y.grad]


@case(lambda f: both(f, (0, 1)), lambda f: both(f, (1,)), lambda f: both(f, (0,)))
def partial_gradients() -> Any:
    return two


def second_derivative(f: Any) -> Any:
    x = data(3).requires_grad_()
    (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0]


@case(second_derivative)
def double_backward() -> Any:
    return lambda x: (x * x).sin()


def dropped(f: Any) -> Any:
    torch.manual_seed(7)
    x = data(64).requires_grad_()
    y = f(x)
    y.sum().backward()
    return y.detach(), x.grad


@case(dropped)
def dropout() -> Any:
    return lambda x: F.dropout(x, 0.5) * 2


def cast(f: Any) -> Any:
    x = data(4, 4).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(x)
    y.float().sum().backward()
    return y.detach(), x.grad


@case(cast)
def autocast() -> Any:
    return lambda x: (x @ x).relu()


def views(f: Any) -> Any:
    x = data(4, 4).requires_grad_()
    a, b = f(x)
    with torch.no_grad():
        a.fill_(3)
    return a.detach(), b.detach()


@case(views)
def aliases() -> Any:
    def alias(x: Tensor) -> Any:
        y = x * 2
        return y, y.t()[1:]

    return alias


def sized(x: Tensor, n: int) -> Any:
    y = (x @ x.t()).softmax(-1)
    return y.sum(0) * n, x.shape[0] * 2, x.reshape(-1)[: x.shape[1]]


def sizes(f: Any) -> Any:
    results = []
    for n in (4, 6, 9):
        x = data(n, 5).requires_grad_()
        y, double, part = f(x, n)
        (y.square().sum() + part.sum()).backward()
        results.append((y.detach(), double, part.detach(), x.grad))
    return results


@case(sizes, dynamic=True)
def dynamic() -> Any:
    return sized


@case(lambda f: [sizes(f), sizes(f)][1], entries=2)  # afterwards one entry serves all sizes, bit by bit
def sizes_that_change() -> Any:
    return sized


def below(x: Tensor, n: int) -> Any:
    return x * n, n - 1, abs(n)


@case(lambda f: [f(data(4, 3), n) for n in (-4, -6, 9, -2)], entries=2, dynamic=True)
def numbers_below_zero() -> Any:
    return below


def sized_break(x: Tensor) -> Any:
    n = x.shape[0] + 1
    y = x * n
    pycompiler.graph_break()
    return y.sum() / n, [n] * 2


@case(lambda f: [f(data(n, 3)) for n in (4, 6, 9)], entries=2, dynamic=True)
def dynamic_break() -> Any:
    return sized_break


def losses(w: Tensor, x: Tensor) -> Tensor:
    def loss(v: Tensor) -> Tensor:
        return ((x @ v).relu() ** 2).sum()

    return torch.func.grad(loss)(w) + torch.func.vmap(lambda row: row * row.sum())(x)[0]


@case(lambda f: f(data(3), data(4, 3)))
def transforms() -> Any:
    return losses


def recomputed(f: Any) -> Any:
    x = data(3, 3).requires_grad_()
    f(x).sum().backward()
    return x.grad


@case(recomputed)
def checkpointed() -> Any:
    return lambda x: checkpoint(lambda y: (y @ y).relu().exp(), x, use_reentrant=False) * 2


@pycompiler.nested_compile_region
def gated(x: Tensor, w: Tensor) -> Tensor:
    return torch.sigmoid(x @ w) * x


def through_regions(x: Tensor) -> Tensor:
    y = x * 2
    for _ in range(3):
        y = gated(y, x)
    return y


@case(lambda f: f(data(3, 3)), recomputed, entries=2)
def regions() -> Any:
    return through_regions


def chosen(f: Any) -> Any:
    results = []
    for sign in (1, -1):
        x = (sign * data(3)).requires_grad_()
        y = f(x)
        y.sum().backward()
        results += [y.detach(), x.grad]
    return results


@case(lambda f: (f(data(3)), f(-data(3))), chosen, entries=2)
def branches() -> Any:
    return lambda x: torch.cond(x[0] > 0, lambda y: y * 2, lambda y: y - 1, (x,))


@case(lambda f: [chosen(lambda x: f(x.repeat(n))) for n in (2, 3, 5)], dynamic=True)
def branches_of_any_size() -> Any:
    return lambda x: torch.cond(x[0] > 0, lambda y: y * y.shape[0], lambda y: y - x[-1], (x,))


@case(lambda f: (f(data(3).abs()), f(-data(3).abs())))
def loops() -> Any:
    return lambda x: while_loop(
        lambda i, y: y.abs().sum() < 9, lambda i, y: (i + 1, y * 2 + i + 1), (x.new_zeros(()), x)
    )


@case(lambda f: [chosen(lambda x: f(x.repeat(n))) for n in (2, 3, 5)], dynamic=True)
def loops_with_gradients() -> Any:
    return lambda x: while_loop(
        lambda i, y: y.abs().sum() < 90, lambda i, y: (i + 1, y * 2 + x * y.shape[0]), (x.new_zeros(()).detach(), x * 2)
    )[1]


@case(lambda f: [chosen(lambda x: f(x.repeat(n).view(-1, 3), x[:3])) for n in (20, 30, 40)], entries=2)
def scans() -> Any:
    return lambda xs, h: scan(lambda c, x: (c * 0.5 + x / xs.shape[0], c.sin() * x), h, xs)[1]


# graph breaks -------------------------------------------------------------------------------------------------------
def broken(x: Tensor, n: int) -> Tensor:
    y = x * n
    pycompiler.graph_break()
    z = [y, n]
    for k in range(2):
        pycompiler.graph_break()
        z.append(y.cos() + k)
    return z[-1] + z[0] + z[1]


@case(lambda f: f(data(3), 2), lambda f: gradients_of(f), entries=6)
def breaks() -> Any:
    return broken


def gradients_of(f: Any) -> Any:
    x = data(3).requires_grad_()
    f(x, 3).sum().backward()
    return x.grad


@contextlib.contextmanager
def doubled(log: list[str]) -> Iterator[int]:
    log.append("in")
    yield 2
    log.append("out")


def inner_break(x: Tensor) -> Tensor:
    y = x.exp()
    pycompiler.graph_break()
    return y.sum()


def break_inside(x: Tensor) -> tuple[Tensor, list[str]]:
    log: list[str] = []
    a = inner_break(x) * 2
    try:
        with doubled(log) as n:
            pycompiler.graph_break()
            a = a * n + x
            raise KeyError("k")
    except KeyError:
        a = a - 1
    return a + inner_break(x), log


@case(lambda f: f(data(3)), entries=4)
def breaks_inside() -> Any:
    return break_inside


def helper(x: Tensor, n: int) -> Tensor:
    return (x * n).tanh().sum()


def unknown_call(x: Tensor) -> Any:
    y = x + 1
    found = list(map(functools.partial(helper, y), collections.OrderedDict(a=1, b=2).values().__reversed__()))
    print("called", end="")
    return found, helper(y, 3)


@case(lambda f: f(data(3)), entries=2)
def hooked() -> Any:
    return unknown_call


def cells(x: Tensor) -> Any:
    total = x * 0

    def add(y: Tensor) -> None:
        nonlocal total
        total = total + y

    add(x)
    pycompiler.graph_break()
    add(x * 2)
    return total, [add.__name__]


@case(lambda f: f(data(3)), entries=2)
def broken_closure() -> Any:
    return cells


# errors -------------------------------------------------------------------------------------------------------------
def outside(f: Any) -> Any:
    good = f(data(4, 3), torch.tensor([1, 3]))
    try:
        f(data(4, 3), torch.tensor([1, 4]))
    except IndexError as e:
        return good, str(e)
    return good, "no error"


@case(outside)
def index_error() -> Any:
    return lambda x, i: x[i] * 2


# programs that cannot be saved --------------------------------------------------------------------------------------
def ordered(x: Tensor) -> list[str]:
    x = x + 1
    return [name for name in {"a", "b", "c"}]


@case(lambda f: sorted(f(data(3))), entries=0, left_out="the order of a set, which differs between processes")
def set_order() -> Any:
    return ordered


@case(lambda f: f(data(3), {"a", "b"}))
def set_membership() -> Any:
    return lambda x, names: x + 1 if "a" in names and "z" not in {"x", "y"} else x


class Local:
    pass


UNNAMED = [Local()]


@case(lambda f: f(data(3)), entries=1)
def object_of_a_list() -> Any:
    return lambda x: x + 1 if type(UNNAMED[0]) is Local else x


def local_class() -> type:
    class Inside(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    return Inside


@case(lambda f: f(data(3)), entries=0, left_out="local_class.<locals>.Inside")
def class_without_name() -> Any:
    return local_class()()


@dataclasses.dataclass
class Model:
    scale: float

    def run(self, x: Tensor) -> Tensor:
        return x * self.scale

    @staticmethod
    def still(x: Tensor) -> Tensor:
        return x - 1

    @property
    def twice(self) -> float:
        return self.scale * 2

    def __call__(self, x: Tensor) -> Tensor:
        return self.run(self.still(x)) * self.twice


@case(lambda f: f(data(3)))
def method() -> Any:
    return Model(1.5).run


@case(lambda f: f(data(3)))
def callable_object() -> Any:
    return Model(1.5)


# unbacked symbols ---------------------------------------------------------------------------------------------------
def number(n: int) -> Tensor:
    return torch.tensor(n)


def first(x: Tensor, n: Tensor) -> Tensor:
    return x[: n.item()].softmax(0) * n


@case(*[lambda f, n=n: f(data(9), number(n)) for n in (4, 6, 9, 12, -2)], capture_scalar_outputs=True)
def item_and_what_it_does_not_fit() -> Any:
    return first


def truths(x: Tensor, n: Tensor) -> tuple[bool, bool, Tensor]:
    return bool(n.item()), bool(x.sum().item()), x.new_ones(max(n.item(), 4))


@case(*[lambda f, n=n: f(data(9), number(n)) for n in (4, 0, 9)], capture_scalar_outputs=True)
def truths_of_items() -> Any:
    return truths


def scaled_by_item(x: Tensor, n: Tensor, w: Tensor) -> Tensor:
    return F.gelu(x * n.item()) @ w


def trained(f: Any, n: int) -> list[Tensor]:
    x, w = data(3, 4).requires_grad_(), data(4, 2).requires_grad_()
    y = f(x, number(n), w)
    return [y.detach(), *torch.autograd.grad(y.sum(), (x, w))]


@case(lambda f: trained(f, 3), lambda f: trained(f, -2), capture_scalar_outputs=True)
def item_with_gradients() -> Any:
    return scaled_by_item


def positive(x: Tensor, scale: float) -> tuple[Tensor, int, Tensor]:
    chosen = x[x > 0]
    return chosen.exp() * scale, chosen.shape[0] + 1, (x < 0).nonzero() * 2


@case(
    lambda f: f(data(9), 2.0), lambda f: f(data(9, seed=1), 2.0), lambda f: f(data(5, seed=2), 2.0), entries=2,
    capture_dynamic_output_shape_ops=True,
)  # fmt: skip
def masks_and_nonzero() -> Any:
    return positive


def spread(x: Tensor) -> Tensor:
    """Warns of rows of one number."""
    return x.var(-1) + x.relu().sum()
