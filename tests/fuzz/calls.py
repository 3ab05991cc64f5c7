"""Calls of functions that capture handles or folds, and of special methods, with arguments of any kind, compared with eager.

A call is inside a `try`, as in programs. The result, the error and the changes of the arguments are compared. Each function is
compiled once and called three times: first, then with one argument of another kind, then with the first arguments again.
``python -m tests.fuzz.calls --count 5000 --seed 0`` prints the calls whose compiled result differs.
"""

from __future__ import annotations

import argparse
import builtins
import collections
import enum
import linecache
import logging
import math
import operator
import random
import re
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

import pycompiler
from pycompiler.capture.interpreter import calls

from .forks import UNSETTLED, too_many

# Names (as `name_of` gives them) of functions that are not called, with a reason for each group.
LEFT_OUT = frozenset((
    # they wait for a user, print, or end the process
    "builtins..breakpoint", "builtins..input", "builtins..print", "io..open",
    "torch._C.._get_function_stack_at",  # with -1 it reads memory that does not exist
    # they compile or run code, or read namespaces, for which no argument here stands
    "builtins..compile", "builtins..eval", "builtins..exec", "builtins..globals", "builtins..locals",
    # they return another value each time
    "builtins..id", ".Random.Random.random", ".datetime.datetime.now", ".time.time.strftime",
    *(f"time..{name}" for name in (
        "ctime", "gmtime", "localtime", "strftime", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
        "process_time_ns", "thread_time", "thread_time_ns", "time", "time_ns",
    )),
    # they return uninitialised memory
    *(f"torch..{kind}Tensor" for kind in (
        "", "BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short",
    )),
    # rounding an integer to 2**63 places computes that power of ten
    "builtins..round", ".int.int.__round__",
    # these are true in compiled code, as torch documents
    "torch._utils..is_compiling", "torch.compiler..is_compiling", "torch.compiler..is_dynamo_compiling",
    # they return functions in whose calls the graph may break
    "operator..methodcaller", "_functools..cmp_to_key",
    # they change the class that they receive
    "copyreg.._slotnames", "dataclasses..dataclass",
    # they change the state of the process or of the thread
    "_warnings..warn", "warnings..filterwarnings", "warnings..resetwarnings", "warnings..simplefilter",
    "warnings..catch_warnings.__enter__", "warnings..catch_warnings.__exit__",
    ".Generator.Generator.manual_seed", "torch.random..manual_seed", ".device.device.__enter__", ".device.device.__exit__",
    "torch..autocast_decrement_nesting", "torch..autocast_increment_nesting", "torch..clear_autocast_cache",
    "torch..use_deterministic_algorithms",
    *(f"torch..set_{name}" for name in (
        "autocast_cache_enabled", "autocast_dtype", "autocast_enabled", "default_device", "default_dtype", "float32_matmul_precision",
        "flush_denormal", "num_threads",
    )),
    "torch._C..DisableTorchFunction", "torch._C..DisableTorchFunctionSubclass",
    "torch._C.._pop_torch_function_stack", "torch._C.._push_on_torch_function_stack",
    *(f"torch._C.._set_{name}" for name in (
        "grad_enabled", "sdp_priority_order", "sdp_use_cudnn", "sdp_use_flash", "sdp_use_math", "sdp_use_mem_efficient",
        "sdp_use_overrideable",
    )),
    "torch._C..pybind11._set_torch_function_state", "torch._ops.profiler..pybind11._record_function_enter_new",
    *(f"torch._C._nvtx..pybind11.{name}" for name in ("markA", "rangePop", "rangePushA")),
    "torch.autograd.grad_mode..inference_mode.__enter__", "torch.autograd.grad_mode..inference_mode.__exit__",
))  # fmt: skip
PYBIND11 = re.compile(r"pybind11_detail_function_record_\w+")  # pybind11's class of functions; it names the compiler


class Program:
    """A class of the program."""

    def __init__(self, n: int = 3) -> None:
        self.n = n

    def __repr__(self) -> str:
        return f"Program({getattr(self, 'n', None)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.n == other.n

    def __hash__(self) -> int:
        return 5

    def __lt__(self, other: Program) -> bool:
        return self.n < other.n

    def __index__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])

    def __len__(self) -> int:
        return 2


def _methods(base: type, **more: Any) -> type:
    """A class derived from `base` that defines its own conversions to numbers and strings, and its own operators."""
    own = {
        "__float__": lambda s: 2.5, "__index__": lambda s: 1, "__int__": lambda s: 7, "__complex__": lambda s: 2 + 1j,
        "__trunc__": lambda s: 9, "__floor__": lambda s: 8, "__round__": lambda s, n=None: ("r", n), "__gt__": lambda s, o: "gt",
        "__lt__": lambda s, o: "lt", "__abs__": lambda s: "abs", "__hash__": lambda s: 5, "__format__": lambda s, f: "fmt" + f,
        "__str__": lambda s: "STR", "__bool__": lambda s: False, "__add__": lambda s, o: "add", "__rmod__": lambda s, o: "rmod",
    }  # fmt: skip
    return type(f"Own{base.__name__.title()}", (base,), {**own, **more})


class Int(int):
    pass


class Float(float):
    pass


class Text(str):
    pass


class Bytes(bytes):
    pass


class Pair(tuple):
    pass


class Named(collections.namedtuple("Named", "a b")):
    pass


class Many(list):
    pass


class Table(dict):
    def __missing__(self, key: Any) -> Any:
        return "missing", key


class Ordered(collections.OrderedDict):
    def __getitem__(self, key: Any) -> Any:
        return "own", key


class Distinct(set):
    pass


class Getter:
    def __getitem__(self, key: Any) -> Any:
        if key == 3:
            raise IndexError(key)
        return key


class Color(enum.IntEnum):
    RED = 1


class Way(enum.Enum):
    UP = "up"


class Manager:
    def __enter__(self) -> int:
        return 1

    def __exit__(self, *told: Any) -> bool:
        return told[0] is KeyError


OWN = [_methods(base) for base in (object, int, float, str, tuple, list, dict)]


def _same(value: Any) -> Any:
    return value


MODULE = torch.nn.Linear(2, 2)
MAKERS: dict[str, Callable[[], Any]] = {
    "int": lambda: 3, "negative": lambda: -1, "float": lambda: 2.5, "big": lambda: 2**70, "complex": lambda: 1j,
    "bool": lambda: True, "none": lambda: None, "str": lambda: "ab", "bytes": lambda: b"ab", "list": lambda: [3, 1, 2],
    "tuple": lambda: (1, 2), "dict": lambda: {"a": 1}, "set": lambda: {1, 2}, "frozenset": lambda: frozenset([1]),
    "ordered": lambda: collections.OrderedDict(a=1), "deque": lambda: collections.deque([1, 2]),
    "defaultdict": lambda: collections.defaultdict(list), "range": lambda: range(3), "slice": lambda: slice(0, 1),
    "iterator": lambda: iter([1, 2]), "generator": lambda: (n for n in (1, 2)), "keys": lambda: {1: 2}.keys(),
    "function": lambda: _same, "class": lambda: int, "program": Program, "its class": lambda: Program,
    "exception": lambda: ValueError("x"), "tensor": lambda: torch.arange(4.0).reshape(2, 2),
    "index": lambda: torch.tensor([1, 0]), "size": lambda: torch.Size([2, 1]), "dtype": lambda: torch.float64,
    "module": lambda: MODULE, "64 bits": lambda: 2**63, "-64 bits": lambda: -(2**63) - 1, "nan": lambda: math.nan, "zero": lambda: 0,
    "Int": lambda: Int(1), "Float": lambda: Float(1.5), "Text": lambda: Text("ab"), "Bytes": lambda: Bytes(b"a"),
    "Pair": lambda: Pair((1, 2)), "Named": lambda: Named(1, "a"), "Many": lambda: Many([1, 2]), "Table": lambda: Table(a=1),
    "Ordered": lambda: Ordered(a=1), "Distinct": lambda: Distinct({1}), "Getter": Getter, "Color": lambda: Color.RED,
    "Way": lambda: Way.UP, "Manager": Manager, "counter": lambda: collections.Counter("aab"), "bytearray": lambda: bytearray(b"ab"),
    "chain": lambda: collections.ChainMap({"a": 1}), "user's": lambda: collections.UserDict(a=1), "key": lambda: "a",
    "pairs": lambda: [("a", 1), ("b", 2)], "nested": lambda: [[1, 2], (3, 4)], "empty": lambda: (), "error": lambda: KeyError,
    "template": lambda: "%(a)s %s", "format": lambda: "{0} {a}", "alias": lambda: list[int],
    "one": lambda: 1, "one.": lambda: 1.0, "-0.0": lambda: -0.0, "0.0": lambda: 0.0, "false": lambda: False, "four": lambda: [1, 2, 3, 4],
    "longer": lambda: (1, 2, 3), "other items": lambda: {"b": 2, "a": 1}, "ones": lambda: (True, 1.0), "text": lambda: "cd",
    "row": lambda: torch.tensor([1.5, -2.0]), "integers": lambda: torch.tensor([[2, 1], [0, 3]]), "bools": lambda: torch.tensor([True, False]),
    "0-dim": lambda: torch.tensor(2.0), "0-dim int": lambda: torch.tensor(3), "no rows": lambda: torch.zeros(0, 2),
    "turned": lambda: torch.arange(4.0).reshape(2, 2).t(), "complex tensor": lambda: torch.tensor([1j, 2.0]),
    "asks": lambda: torch.ones(2, 2, requires_grad=True), "half": lambda: torch.tensor([1.5, 3.0], dtype=torch.bfloat16),
    **{cls.__name__: cls for cls in OWN},
}  # fmt: skip
# Statements of Python's syntax over the arguments a, b and c; the value of `r` is compared.
SYNTAX = (
    *(f"r = a {op} b" for op in ("+", "-", "*", "/", "//", "%", "**", "@", "<<", ">>", "&", "|", "^", "<", "<=", ">", ">=", "==",
                                 "!=", "in", "not in", "and", "or")),
    *(f"r = a; r {op}= b" for op in ("+", "-", "*", "/", "//", "%", "**", "@", "<<", ">>", "&", "|", "^")),
    "r = -a", "r = +a", "r = ~a", "r = not a", "r = a[b]", "r = a[b:]", "r = a[:b]", "r = a[::b]", "r = a[b:c]", "a[b] = c; r = a",
    "del a[b]; r = a", "a[b:] = c; r = a", "del a[b:]; r = a", "r = f'{a}'", "r = f'{a!r:>{b}}'", "r = f'{a:{b}}'", "r = f'{a!s}'",
    "r = [*a]", "r = {*a}", "r = {**a}", "r = (*a, *b)", "r = {**a, **b}", "r = {a: b}", "r = {a, b}", "r = _same(*a)", "r = dict(**a)",
    "x, y = a; r = (x, y)", "x, *y = a; r = (x, y)", "(x, y), z = a; r = z", "r = [v for v in a]", "r = {v: 1 for v in a}",
    "r = list(v for v in a)", "r = 1 if a else 2", "r = a.real", "r = a.n", "r = a.a", "a.n = b; r = a", "r = a(b)", "r = a()",
    "r = a < b < c", "assert a, b\nr = 1", "raise a", "raise a from b", "raise ValueError(a) from b",
    "for x in a:\n    r = x\nelse:\n    r = 0", "while a:\n    r = 1\n    break\nelse:\n    r = 2",
    "with a as x:\n    r = x\n    raise KeyError(b)", "with a:\n    r = b.nothing",
    "try:\n    raise KeyError(b)\nexcept a as e:\n    r = type(e)", "try:\n    r = a[b]\nfinally:\n    r = c",
    "try:\n    r = a[b]\nexcept LookupError as e:\n    raise ValueError(c) from e",
    "match a:\n    case [x, y]:\n        r = (x, y)\n    case {'a': x, **y}:\n        r = (x, y)\n    case str(x) | bytes(x):\n"
    "        r = ('text', x)\n    case int(x):\n        r = ('int', x)\n    case Named(x, b=y):\n        r = x\n"
    "    case None | 2.5:\n        r = 'none'\n    case _:\n        r = 'other'",
    "match a:\n    case (x, *y):\n        r = (x, y)\n    case Program(n=3):\n        r = 'program'\n    case Color.RED:\n        r = 'red'\n"
    "    case float():\n        r = 'float'\n    case _:\n        r = 0",
    "def g():\n    x = yield from a\n    return x\nr = list(g())", "def g():\n    x = yield a\n    yield x\nh = g(); next(h); r = h.send(b)",
    "def g(x=a, *y, z=b):\n    return x, y, z\nr = g(*c)", "def g(*x, **y):\n    return x, y\nr = g(*a, **b)",
    "class K(a):\n    pass\nr = K.__mro__", "r = [a, b].index(c)", "r = (a, b).count(c)", "r = a is b", "r = a if b is None else c",
    "r = sorted([a, b, c])", "r = max(a, b, c)", "r = a.__class__", "global_ = a; r = lambda: global_ + b; r = r()",
)  # fmt: skip
OF_CLASS = {type(MAKERS[name]()): name for name in (
    "list", "dict", "str", "tuple", "set", "bytes", "int", "float", "ordered", "deque", "defaultdict", "frozenset", "range",
)}  # fmt: skip
OF_CLASS |= {torch.Tensor: "tensor", torch._C.TensorBase: "tensor"}


def name_of(fn: Any) -> str:
    owner = getattr(getattr(fn, "__objclass__", None), "__name__", "")
    name = f"{getattr(fn, '__module__', None) or ''}.{owner}.{getattr(fn, '__qualname__', fn)}"
    return PYBIND11.sub("pybind11", name)


def is_called(fn: Any) -> bool:
    """Whether calls of `fn` are compared: it belongs to Python or torch and is not left out.  Functions of pycompiler
    are excluded."""
    return name_of(fn) not in LEFT_OUT and (getattr(fn, "__module__", None) or "").partition(".")[0] != "pycompiler"


def handled() -> list[Any]:
    """All functions with a handler and all functions of Python that capture folds, without those left out, in a stable
    order."""
    found = [*calls.BUILTINS, *calls.CONSTRUCTORS]
    folded = [
        f for where in (builtins, math, operator) for f in vars(where).values() if type(f) is types.BuiltinFunctionType
    ]
    methods = [vars(cls)[n] for cls in (str, bytes, int, float, complex, tuple, range, frozenset, list, dict, set)
               for n in vars(cls) if callable(vars(cls)[n]) and n not in ("__class__", "__sizeof__", "__new__")]  # fmt: skip
    once = {name_of(f): f for f in (*found, *folded, *methods) if callable(f) and is_called(f)}
    return [once[name] for name in sorted(once)]


def call_of(seed: int, functions: list[Any]) -> tuple[Any, list[list[str]], bool]:
    """A function, the kinds of its arguments in each call, and whether to add a keyword argument that no function
    takes."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        fn, named = rng.choice(SYNTAX), False
        kinds = [rng.choice([*MAKERS]) for _ in "abc"]
    else:
        fn = rng.choice(functions)
        kinds = [rng.choice([*MAKERS]) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3)))]
        own = OF_CLASS.get(getattr(fn, "__objclass__", None))
        if kinds and own is not None and rng.random() < 0.85:
            kinds[0] = own
        named = rng.random() < 0.06
    others = list(kinds)
    if kinds:
        others[rng.randrange(len(kinds))] = rng.choice([*MAKERS])
    return fn, [kinds, others, kinds], named


def statement(source: str) -> Callable[..., Any]:
    """The function of a, b and c that runs the source and returns `r`."""
    lines = ["def run(a, b, c):", *(f"    {line}" for line in source.splitlines()), "    return r"]
    name = f"<syntax {source}>"
    linecache.cache[name] = (len(source), None, [f"{line}\n" for line in lines], name)
    namespace: dict[str, Any] = dict(globals())
    exec(compile("\n".join(lines), name, "exec"), namespace)
    return namespace["run"]  # type: ignore[no-any-return]


def program(fn: Any, named: bool) -> Callable[[tuple[Any, ...], torch.Tensor], Any]:
    fn = statement(fn) if isinstance(fn, str) else fn

    def call(args: tuple[Any, ...], x: torch.Tensor) -> Any:
        y = x * 2  # without it the graph is empty, and such a frame runs uncompiled
        try:
            return y, fn(*args, bogus=1) if named else fn(*args)
        except Exception as e:
            return y, "raised", type(e).__name__, str(e)

    return call


ADDRESS = re.compile(r"0x[0-9a-f]+")


def seen(value: Any) -> Any:
    """The compared form of a result or an argument."""
    if isinstance(value, torch.Tensor):
        listed = repr(value.tolist()) if value.numel() < 50 and not value.is_meta else None
        return "tensor", value.dtype, tuple(value.shape), value.requires_grad, listed
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(map(repr, map(seen, value)))
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value).__name__, [seen(v) for v in list(value)[:20]]
    if isinstance(value, dict):
        return type(value).__name__, [(seen(k), seen(v)) for k, v in list(value.items())[:20]]
    if isinstance(value, types.GeneratorType):
        return "generator"
    return ADDRESS.sub("at", repr(value))[:300]


def outcome(run: Callable[[tuple[Any, ...], torch.Tensor], Any], kinds: list[str]) -> Any:
    args = tuple(MAKERS[kind]() for kind in kinds)
    try:
        return seen(run(args, torch.ones(2))), seen(args)
    except Exception as e:  # the handler around the call does not cover this part
        return "left the program", type(e).__name__, str(e)[:300]


def difference(
    fn: Any, calls: list[list[str]], named: bool, backend: str = "eager", ended_by: set[str] | None = None
) -> str | None:
    """The difference between a compiled call and eager, or None; `ended_by` receives `UNSETTLED` if two eager calls
    differ, too."""
    run = program(fn, named)
    compiled = pycompiler.compile(run, backend=backend)
    for number, kinds in enumerate(calls):
        want = outcome(run, kinds)
        got = outcome(compiled, kinds)
        if got != want and outcome(run, kinds) != want:
            if ended_by is not None:
                ended_by.add(UNSETTLED)
        elif got != want:
            told = fn if isinstance(fn, str) else name_of(fn)
            before = "".join(f"({', '.join(k)}), then " for k in calls[:number])
            return f"{told}: {before}({', '.join(kinds)}{', bogus=1' if named else ''}): eager {want}, compiled {got}"
    return None


def differences(seed: int, count: int, backend: str = "eager", unsettled: Counter[str] | None = None) -> Iterator[str]:
    """The calls that differ from eager; at last a line if too many calls are unsettled. `unsettled` counts these."""
    functions, unsettled = handled(), Counter[str]() if unsettled is None else unsettled
    for number in range(seed, seed + count):
        ended_by = set[str]()
        if (found := difference(*call_of(number, functions), backend, ended_by)) is not None:
            yield f"seed {number}: {found}"
        unsettled.update(ended_by)
    yield from too_many(unsettled, count)


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz.calls", description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="eager")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    failures, unsettled = 0, Counter[str]()
    for text in differences(asked.seed, asked.count, asked.backend, unsettled):
        failures += 1
        print(text, flush=True)
    print(f"{asked.count} calls, {failures} differences, {unsettled.total()} unsettled")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
