"""Random numbers of NumPy (`numpy.random.rand(4)`), from the module's generator or from a generator of the program.

Generated code draws them before the graph runs, by the same call with the same constants.  Python's generators are
treated the same way (`capture/library/standard/random_numbers.py`).  An array is an input of the graph; a draw during
capture shows its shape and dtype.  A Python number becomes a symbol.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.library.standard.random_numbers import GREATEST, KNOWN, may_draw_before_graph
from pycompiler.capture.recording.input_symbols import DRAWN
from pycompiler.capture.values.array import Array
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.opaque import Opaque
from pycompiler.capture.values.tensor import Tensor
from pycompiler.operators import numpy_arrays, numpy_random
from pycompiler.operators.numpy_random import DrawCall
from pycompiler.torch_compat.fake_mode import fake_of

DEVIATIONS = 16  # bound of a normal number, in deviations: it is computed from 53 or 64 random bits
INTEGER_METHODS = ("randint", "integers", "permutation")
"""Methods with integer arguments."""
METHODS = frozenset(
    {"rand", "randn", "random", "random_sample", "uniform", "normal", "standard_normal", "beta", "binomial", "chisquare",
     "choice", "exponential", "f", "gamma", "geometric", "gumbel", "hypergeometric", "laplace", "logistic", "lognormal",
     "negative_binomial", "pareto", "poisson", "power", "rayleigh", "standard_cauchy", "standard_exponential",
     "standard_gamma", "standard_t", "triangular", "vonmises", "wald", "weibull", "zipf", *INTEGER_METHODS}
)  # fmt: skip


def _of_uniform(low: float = 0.0, high: float = 1.0, size: None = None) -> float:
    return abs(low) + abs(high - low)


def _of_normal(loc: float = 0.0, scale: float = 1.0, size: None = None) -> float:
    return abs(loc) + DEVIATIONS * abs(scale)


def _of_unit(size: None = None, **options: Any) -> float:
    return 1.0


def _bound_of_beta(a: float, b: float, size: None = None) -> float:
    return 1.0


def _of_standard(size: None = None, **options: Any) -> float:
    return float(DEVIATIONS)


def _among(low: int, high: int | None = None, size: None = None, dtype: type | None = None) -> range:
    return range(low) if high is None else range(low, high)


FLOATS: dict[str, Callable[..., float]] = {
    "rand": _of_unit, "random": _of_unit, "random_sample": _of_unit, "uniform": _of_uniform, "normal": _of_normal,
    "randn": _of_standard, "standard_normal": _of_standard, "beta": _bound_of_beta,
}  # fmt: skip
"""Methods that return a Python float -> the bound of its magnitude."""


@builtin(numpy_random.drawing)
def draw(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    method, owner, *given = args
    assert isinstance(method, Builtin)
    name = str(method.fn.__name__)
    if name not in METHODS or not isinstance(owner, Opaque) or owner.source is None:
        raise _unknown(name)
    if (
        not may_draw_before_graph(cx, apart=True)
        or not numpy_random.is_generator(owner.real)
        or torch.get_default_device().type != "cpu"
        or cx.device
    ):
        raise _unknown(name)
    known = tuple(_constant(cx, name, v) for v in given)
    call = name, known, tuple((k, _constant(cx, name, v)) for k, v in kwargs.items())
    try:
        example = numpy_random.draw(numpy_random.new_generator(type(owner.real)), call)
    except Exception:  # the program's own error
        raise _unknown(name) from None
    draws = _draw_number if type(example) in (int, float) else _draw_array
    made = draws(cx, owner, call, example)
    cx.graph.happened = cx.errors_of_data.done.takes = True
    return made


def _unknown(name: str) -> Break:
    return Break("skipped-call", f"numpy.random: {name}")


def _constant(cx: Capture, name: str, value: Value) -> Any:
    """A constant argument: a number, a tuple of sizes, or the name of a dtype."""
    value = cx.realize(value, "as an argument of a NumPy generator")
    if isinstance(value, (Tuple, List)) and value.cls in (tuple, list, torch.Size):
        return tuple(_constant(cx, name, v) for v in value.items)
    if not isinstance(value, (Const, Class)):
        raise _unknown(name)
    real = value.const()
    kinds = (int, bool, str) if name in INTEGER_METHODS else (int, float, bool, str)
    if real is None or (type(real) in kinds and not (type(real) is float and not abs(real) < KNOWN)):
        return real
    if isinstance(real, type) and real in numpy_arrays.PLAIN_DTYPES:  # kept as it is: `int` requests Python numbers
        return real
    dtype = numpy_arrays.dtype_name(real)
    if dtype is None or numpy_arrays.is_unknown(dtype):
        raise _unknown(name)
    return dtype


def _draw_array(cx: Capture, owner: Opaque, call: DrawCall, example: Any) -> Array:
    try:
        form = numpy_arrays.tensor_of(example)
    except (TypeError, ValueError):
        raise _unknown(call[0]) from None
    graph, place = cx.graph, DRAWN.item(len(cx.effects.draws))
    cx.effects.draw(Builtin(numpy_random.draw_tensor), [owner, Const(call)])
    fake = fake_of(cx.fake_mode, form, None)
    made = Tensor(graph.read(place, fake), fake)
    graph.placeholders[made.node].make = functools.partial(_like, tuple(form.shape), form.dtype)
    graph.by_fake[id(fake)] = made
    return Array(made, scalar=numpy_arrays.is_number(example))


def _like(shape: tuple[int, ...], dtype: torch.dtype, scope: Any) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="cpu")


def _draw_number(cx: Capture, owner: Opaque, call: DrawCall, example: Any) -> Value:
    name, args, kwargs = call
    at = len(cx.effects.draws)
    among = made = None
    with contextlib.suppress(KeyError, TypeError):  # the arguments give no bound
        if type(example) is int and name == "randint":
            among = _among(*args, **dict(kwargs))
            fits = len(among) > 0 and max(abs(among.start), abs(among.stop)) < GREATEST
            made = cx.sizes.drawn(at, int, len(among) - 1) if fits else None
        elif type(example) is float:
            made = cx.sizes.drawn(at, float, float(FLOATS[name](*args, **dict(kwargs))))
    if made is None:
        raise _unknown(name)
    if among is None:
        cx.effects.draw(Builtin(numpy_random.draw), [owner, Const(call)])
        return cx.make(made)
    cx.effects.draw(Builtin(numpy_random.draw_integer), [owner, Const(call), Const(among.start)])
    return cx.make(among.start + made)
