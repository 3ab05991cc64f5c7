"""State that `__torch_dispatch__` reads beside its arguments: guarded in depth. A hook without sound guards or with
side effects runs in each call."""

from __future__ import annotations

import contextlib
import io
import random
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler

BACKENDS = ("eager", "native")

CLASS = """
import collections, dataclasses, enum, functools, itertools, operator, random, types
import numpy as np
import torch
from torch.utils._pytree import tree_map

aten = torch.ops.aten

{before}

class W(torch.Tensor):
    {own}

    @staticmethod
    def __new__(cls, a):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, device=a.device, strides=a.stride())

    def __init__(self, a):
        self.a = a

    def __tensor_flatten__(self):
        return ["a"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return W(inner["a"])

    @classmethod
    def __torch_dispatch__(cls, func, kinds, args=(), kwargs=None{default}):
        r = func(*tree_map(lambda t: t.a if isinstance(t, W) else t, args), **(kwargs or {{}}))
        {after}
        return W(r)

def program(x):
    return x * 2 + 1

def change():
    {change}
"""

# Name -> code before the class, the hook's use of a result, the change, and code in the class or its defaults.
GUARDED: dict[str, tuple[str, str, str, str]] = {
    "a list": ("L = [2.0]", "r = r * L[0]", "L[0] = 3.0", ""),
    "a dict": ("D = {'a': 2.0}", "r = r * D['a']", "D['a'] = 3.0", ""),
    "a dict in a dict": ("D = {'a': {'b': [2.0]}}", "r = r * D['a']['b'][0]", "D['a']['b'][0] = 3.0", ""),
    "a list in a tuple": ("T = ([2.0],)", "r = r * T[0][0]", "T[0][0] = 3.0", ""),
    "a set": ("S = {aten.mul.Tensor}", "r = r + 10 if func in S else r", "S.add(aten.add.Tensor)", ""),
    "by an operator": ("L = [2.0]", "r = r * operator.getitem(L, 0)", "L[0] = 3.0", ""),
    "a registry": (
        "D = {aten.mul.Tensor: lambda r: r + 10}",
        "r = D.get(func, lambda r: r)(r)",
        "D[aten.mul.Tensor] = lambda r: r + 20",
        "",
    ),
    "functions in a registry": (
        "K = 2.0\ndef g(r): return r * K\nD = {aten.mul.Tensor: g}",
        "r = D[func](r) if func in D else r",
        "global K; K = 3.0",
        "",
    ),
    "a class's attribute": ("class C:\n    s = 2.0", "r = r * C.s", "C.s = 3.0", ""),
    "a base's attribute": ("class B:\n    s = 2.0\nclass C(B): pass", "r = r * C.s", "C.s = 3.0", ""),
    "by getattr": ("class C:\n    s = 2.0", "r = r * getattr(C, 's')", "C.s = 3.0", ""),
    "by a variable": ("class C:\n    s = 2.0", "c = C; r = r * c.s", "C.s = 3.0", ""),
    "an object of a class": (
        "class C: pass\nC.h = types.SimpleNamespace(v=2.0)",
        "r = r * C.h.v",
        "C.h.v = 3.0",
        "",
    ),
    "an object": ("class C:\n    v = 2.0\nc = C()", "r = r * c.v", "c.v = 3.0", ""),
    "a module's": ("M = types.ModuleType('m'); M.v = 2.0", "r = r * M.v", "M.v = 3.0", ""),
    "the class's own": ("", "r = r * W.S['k']", "W.S['k'] = 3.0", "S = {'k': 2.0}"),
    "a default": ("L = [2.0]", "r = r * k[0]", "L[0] = 3.0", ", k=L"),
    "defaults": ("", "r = r * k", "W.__torch_dispatch__.__func__.__defaults__ = ((), None, 3.0)", ", k=2.0"),
    "a default by name": ("def g(r, *, k=2.0): return r * k", "r = g(r)", "g.__kwdefaults__['k'] = 3.0", ""),
    "a static method": (
        "K = 2.0\nclass C:\n    @staticmethod\n    def g(r): return r * K",
        "r = C.g(r)",
        "global K; K = 3.0",
        "",
    ),
    "a class method": (
        "class C:\n    k = 2.0\n    @classmethod\n    def g(cls, r): return r * cls.k",
        "r = C.g(r)",
        "C.k = 3.0",
        "",
    ),
    "a method of what it makes": (
        "K = 2.0\nclass C:\n    def __call__(self, r): return r * K",
        "r = C()(r)",
        "global K; K = 3.0",
        "",
    ),
    "a partial": ("L = [2.0]\ndef g(k, r): return r * k[0]\np = functools.partial(g, L)", "r = p(r)", "L[0] = 3.0", ""),
    "a closure": (
        "def mk(k):\n    def g(r): return r * k[0]\n    return g\nL = [2.0]\ng = mk(L)",
        "r = g(r)",
        "L[0] = 3.0",
        "",
    ),
    "what torch decorates": (
        "K = 2.0\n@torch.no_grad()\ndef g(r): return r * K",
        "r = g(r)",
        "global K; K = 3.0",
        "",
    ),
    "a frozen dataclass": (
        "@dataclasses.dataclass(frozen=True)\nclass C:\n    v: float\nc = C(2.0)",
        "r = r * c.v",
        "global c; c = C(3.0)",
        "",
    ),
    "a member's method": (
        "K = 2.0\nclass E(enum.Enum):\n    A = 1\n    def g(self): return self.value * K\nm = E.A",
        "r = r * m.g()",
        "global K; K = 3.0",
        "",
    ),
    "a global that hides a function": ("", "r = r * max(2.0, 1.0)", "globals()['max'] = lambda *a: 9.0", ""),
    "a global that appears": (
        "",
        "try: r = r * k\n        except NameError: pass",
        "global k; k = 3.0",
        "",
    ),
    "an attribute that appears": ("", "r = r * getattr(cls, 'k', 2.0)", "W.k = 3.0", ""),
    "an attribute that is missed": (
        "",
        "try: r = r * cls.k\n        except AttributeError: pass",
        "W.k = 3.0",
        "",
    ),
    "a cell that fills": (
        "def mk():\n    def fill(v):\n        nonlocal k\n        k = v\n    def g(r):\n        try: return r * k\n"
        "        except NameError: return r\n    if 0: k = 1\n    return g, fill\ng, fill = mk()",
        "r = g(r)",
        "fill(3.0)",
        "",
    ),
    "a function's attribute": ("def g(r): return r * g.k\ng.k = 2.0", "r = g(r)", "g.k = 3.0", ""),
    "what is in torch's module": (
        "torch.hooks_of_wrappers = 2.0",
        "r = r * torch.hooks_of_wrappers",
        "torch.hooks_of_wrappers = 3.0",
        "",
    ),
    "how it is made": ("", "pass", "def init(self, a): self.a = a * 3\n    W.__init__ = init", ""),
}

ACTING: dict[str, tuple[str, str, str, str]] = {
    "a counter": ("C = itertools.count()", "r = r + next(C)", "pass", ""),
    "random": ("", "r = r + random.random()", "pass", ""),
    "NumPy's random": ("", "r = r + float(np.random.rand())", "pass", ""),
    "a tensor that is written": ("STATE = torch.zeros(())", "STATE.add_(1)", "pass", ""),
    "a tensor": ("T = torch.tensor(2.0)", "r = r * T", "T.fill_(3.0)", ""),
    "another tensor": ("T = torch.tensor(2.0)", "r = r * T", "global T; T = torch.tensor(3.0)", ""),
    "a cache": (
        "L = [2.0]\n@functools.lru_cache\ndef g(fn): return L[0]",
        "r = r * g(func)",
        "L[0] = 3.0; g.cache_clear()",
        "",
    ),
    "a caller": (
        "g = operator.methodcaller('add', 1.0)",
        "r = g(r)",
        "global g; g = operator.methodcaller('add', 2.0)",
        "",
    ),
    "a registry that prints": (
        "def g(r): print('x'); return r + 1\nD = {aten.mul.Tensor: g}",
        "r = D.get(func, lambda r: r)(r)",
        "pass",
        "",
    ),
    "a tuple that prints": ("def g(r): print('x'); return r\nT = (g,)", "r = T[0](r)", "pass", ""),
    "a partial that prints": (
        "def g(k, r): print(k); return r\np = functools.partial(g, 1)",
        "r = p(r)",
        "pass",
        "",
    ),
    "a static method that prints": (
        "class C:\n    @staticmethod\n    def g(r): print('x'); return r",
        "r = C.g(r)",
        "pass",
        "",
    ),
    "a call that prints": ("class C:\n    def __call__(self, r): print('x'); return r", "r = C()(r)", "pass", ""),
    "a decorated one that prints": (
        "@torch.no_grad()\ndef g(r): print('x'); return r",
        "r = g(r)",
        "pass",
        "",
    ),
    "a bound method": ("STATE = []\nap = STATE.append", "ap(str(func))", "pass", ""),
    "a dict by another name": ("STATE = {}", "d = STATE; d[str(func)] = 1", "pass", ""),
    "a dict that is handed on": ("STATE = {}\ndef g(d): d[str(len(d))] = 1", "g(STATE)", "pass", ""),
    "a dict that fills itself": ("STATE = collections.defaultdict(int)", "STATE[str(func)]", "pass", ""),
    "the class's own that is written": ("", "cls.STATE.append(1)", "print(len(W.STATE))", "STATE = []"),
    "a name that is computed": (
        "class C:\n    scale = 2.0",
        "r = r * getattr(C, 'sc' + ('ale' if args else ''))",
        "C.scale = 3.0",
        "",
    ),
    "a text that prints": ("class C:\n    def __str__(self): print('x'); return ''", "str(C())", "pass", ""),
    "a namespace": ("class C:\n    s = 2.0", "r = r * vars(C)['s']", "C.s = 3.0", ""),
    "an import": ("", "import random as r2; r = r + r2.random()", "pass", ""),
}


def _made(case: tuple[str, str, str, str]) -> dict[str, Any]:
    before, after, change, inside = case
    default, own = (inside, "pass") if inside.startswith(",") else ("", inside or "pass")
    text = CLASS.format(before=before, after=after, change=change, own=own, default=default)
    space: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, "<hooks of wrappers>", "exec", dont_inherit=True), space)
    return space


def _calls(case: tuple[str, str, str, str], backend: str | None, *, whole: bool) -> tuple[Any, int]:
    """Results of four calls with a change in between, the printed output and the final state; and the number of compiles."""
    space = _made(case)
    program = space["program"]
    run = program if backend is None else pycompiler.compile(program, backend=backend, fullgraph=whole)
    random.seed(0)
    np.random.seed(0)
    results = []
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for i in range(4):
            if i == 2:
                space["change"]()
            results.append(run(space["W"](torch.arange(3.0) + i)).a.tolist())
    vars(torch).pop("hooks_of_wrappers", None)
    state = repr(space.get("STATE"))
    return (results, out.getvalue(), state, random.random()), 0 if backend is None else run.counters()["compiles"]


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GUARDED)
def test_what_a_hook_reads_is_guarded(name: str, backend: str) -> None:
    wanted, _ = _calls(GUARDED[name], None, whole=True)
    got, compiles = _calls(GUARDED[name], backend, whole=True)
    assert got == wanted
    assert compiles == 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ACTING)
def test_a_hook_that_acts_runs_in_each_call(name: str, backend: str) -> None:
    wanted, _ = _calls(ACTING[name], None, whole=False)
    got, _ = _calls(ACTING[name], backend, whole=False)
    assert got == wanted
    space = _made(ACTING[name])
    report = pycompiler.explain(space["program"])(space["W"](torch.ones(3)))
    assert {b.kind for b in report.break_reasons} == {"tensor-subclass"}


class Checked(torch.Tensor):
    """A subclass whose hook has an assertion: pytest rewrites its code when it loads this file."""

    def __new__(cls, a: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, strides=a.stride())  # type: ignore[attr-defined]

    def __init__(self, a: torch.Tensor) -> None:
        assert a.dtype == torch.float32, a.dtype
        self.a = a

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["a"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> Any:
        return Checked(inner["a"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*(t.a if isinstance(t, Checked) else t for t in args), **(kwargs or {}))
        assert result.dtype == args[0].dtype
        return Checked(result)


@pytest.mark.parametrize("backend", BACKENDS)
def test_assertions_that_pytest_has_rewritten(backend: str) -> None:
    assert any("pytest" in name for name in Checked.__torch_dispatch__.__code__.co_names)
    compiled = pycompiler.compile(lambda x: x * 2 + 1, backend=backend, fullgraph=True)
    for _ in range(2):
        found = compiled(Checked(torch.arange(3.0)))
        assert type(found) is Checked and found.a.tolist() == [1.0, 3.0, 5.0]
    assert pycompiler.counters(compiled)["compiles"] == 1
