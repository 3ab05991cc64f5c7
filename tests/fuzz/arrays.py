"""Differential fuzzing of NumPy: random programs of arrays, numbers and tensors, beside NumPy and torch themselves.

    python -m tests.fuzz.arrays --seed 1 --count 500 [--backend native]

In: a seed.  Out: nothing, or the program and the call that differs from eager: in values, dtypes, shapes, kinds, identity
or shared memory of results, writes to arguments, or the class and text of an error.  Each program is called again with
other dtypes, shapes and numbers.
"""

from __future__ import annotations

import argparse
import linecache
import math
import random
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import pycompiler

DTYPES = ("float64", "float64", "float32", "float32", "float16", "int64", "int32", "int8", "uint8", "bool_")
SHAPES = ("(3,)", "(3,)", "(2, 3)", "(2, 3)", "(3, 3)", "(1, 3)", "(2, 1)", "()", "(0,)", "(2, 2, 2)")
CONTENTS = ("np.arange(1, 1 + {n}).reshape({s})", "(np.arange({n}) / 4 - 0.5).reshape({s})", "np.ones({s})", "np.zeros({s})",
            "(np.arange({n}) % 3 - 1).reshape({s})")  # fmt: skip
NUMBERS = ("np.float64(2.5)", "np.float32(1.25)", "np.float16(3)", "np.int8(100)", "np.int64(2)", "np.int32(-3)", "np.uint8(250)",
           "np.bool_(True)", "3", "2.5", "True", "-1", "0", "300", "np.float64('nan')", "np.float32(0)")  # fmt: skip
TENSORS = ("torch.arange(3)", "torch.arange(3.)", "torch.arange(3.).half()", "torch.arange(3, dtype=torch.int8)", "torch.tensor(2.)",
           "torch.tensor([True, False, True])", "torch.arange(6.).reshape(2, 3)")  # fmt: skip
# {n} a number, {a} an array, {t} a tensor
NUMBER = (
    "2", "0.5", "np.float32(2)", "np.int8(5)", "({n} + {n})", "({n} * {n})", "({n} - {n})", "({n} / {n})", "({n} // {n})", "({n} % {n})",
    "({n} ** {n})", "{a}[0]", "{a}[-1]", "{a}[i]", "{a}[0, 0]", "{a}[()]", "{a}.sum()", "{a}.max()", "{a}.mean()", "{a}.prod()",
    "{a}.any()", "{a}.all()", "{a}.argmax()", "{a}.item()", "np.abs({n})", "np.sqrt({n})", "np.square({n})", "np.sign({n})",
    "np.maximum({n}, {n})", "np.minimum({n}, {n})", "np.add({n}, {n})", "np.less({n}, {n})", "float({n})", "np.float32({n})",
    "np.int64({n})",
)  # fmt: skip
ARRAY = (
    "({a} + {n})", "({a} - {a})", "({a} * {n})", "({a} / {a})", "({a} // {n})", "({a} % {n})", "({a} ** {n})", "({n} - {a})", "({n} / {a})",
    "({a} < {n})", "({a} == {a})", "({a} != {n})", "({a} & {a})", "({a} @ {a})", "{a}.sum(axis=0)", "{a}.sum(-1, keepdims=True)",
    "{a}.max(axis=0)", "{a}.mean(axis=-1)", "{a}.mean(dtype=np.float32, axis=0)", "{a}.std(axis=0)", "{a}.cumsum(0)", "{a}.argmax(-1)",
    "{a}.any(axis=0)", "{a}.copy()", "{a}.astype(np.float32)", "{a}.astype(int)", "{a}.astype(bool)", "{a}.reshape(-1)", "{a}.ravel()",
    "{a}.T", "{a}.flatten()", "{a}.squeeze()", "{a}.real", "{a}.swapaxes(0, -1)", "{a}.clip(0, 2)", "{a}.clip(-1, 1.5)", "{a}.round(1)",
    "{a}[1:]", "{a}[:2]", "{a}[::2]", "{a}[::-1]", "{a}[None]", "{a}[[0, 1]]", "{a}[m]", "{a}[..., 0]", "{a}[i:]", "{a}[{a} > 1]",
    "{a}[np.array([0, 1])]", "np.abs({a})", "np.sqrt({a})", "np.square({a})", "np.negative({a})", "np.isnan({a})", "np.diff({a})",
    "np.where({a} > {n}, {a}, {n})", "np.where({a} > {n}, {n}, {a})", "np.clip({a}, {n}, 2)", "np.clip({a}, 0, {n})", "np.inner({a}, {a})",
    "np.outer({a}, {a})", "np.append({a}, {n})", "np.concatenate([{a}, {a}])", "np.concatenate([{a}, {a}], axis=-1)",
    "np.stack(({a}, {a}), -1)", "np.vstack([{a}, {a}])", "np.hstack([{a}, {n}])", "np.array([{n}, {n}, {n}])", "np.array([{a}, {a}])",
    "np.array([{n}, 2.5])", "np.full((2, 2), {n})", "np.full_like({a}, {n})", "np.linspace({n}, {n}, 4)", "np.maximum({a}, {n})",
    "np.minimum({a}, {a})", "np.power({a}, {n})", "np.less({a}, {n})", "np.nan_to_num({a})", "np.average({a})", "np.zeros_like({a})",
    "np.tensordot({a}, {a}, 1)", "np.expand_dims({a}, 0)", "np.roll({a}, 1)", "np.tile({a}, 2)", "np.add.reduce({a})", "np.arange(3)",
    "np.zeros(3)", "np.array([4, 5, 6])", "np.ones((2, 3), np.float32)", "x.numpy()", "np.sort({a})", "np.median({a})", "np.logical_not({a})",
    "np.median({a}, axis=0)", "np.sign({a})", "np.reciprocal({a})", "np.heaviside({a}, {n})", "np.quantile({a}, 0.3, axis=-1)",
    "np.percentile({a}, 70.0)", "np.diag({a})", "np.vander({a})", "np.gradient({a})", "np.gradient({a}, axis=0)", "np.ascontiguousarray({a})",
)  # fmt: skip
TENSOR = (
    "({t} + {n})", "({t} * {n})", "({n} - {t})", "({t} / {n})", "({t} > {n})", "({t} == {n})", "({t} * {a})", "({t} + {a})",
    "torch.from_numpy({a})", "torch.tensor({n})", "torch.tensor({a})", "torch.full((2,), {n})", "torch.as_tensor({a})",
)  # fmt: skip
WRITES = (
    "{v}[0] = {n}", "{v}[i] = {n}", "{v}[1:] = {a}", "{v}[...] = {n}", "{v}[m] = {n}", "{v}[[0, 1]] = {a}", "{v}[:] = {a}", "{v}[1:] *= {n}",
    "{v}[0] += {n}", "{v} += {n}", "{v} *= {n}", "{v} -= {a}", "{v} /= {n}", "{v} //= {n}", "{v} **= 2", "{v} |= {n}", "{v}.sort()",
    "{v}.fill({n})", "np.add({a}, {n}, out={v})", "np.maximum({a}, {a}, out={v})",
)  # fmt: skip


class Program:
    """The statements of a program: `x` is a tensor, `a` and `b` are arrays, `p` and `q` numbers, `i` an index."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = {"n": ["p", "q"], "a": ["a", "b"], "t": ["x"]}
        self.body: list[str] = []
        self.calls = self.arguments()
        for k in range(self.random.randint(2, 6)):
            self.statement(f"v{k}")

    @property
    def text(self) -> str:
        names = ", ".join(n for kind in self.names.values() for n in kind[-3:])
        body = "".join(f"    {line}\n" for line in ["m = np.array([True, False, True])", *self.body])
        return f"def f(x, a, b, p, q, i):\n{body}    return {names}\n"

    def expression(self, kind: str, depth: int = 0) -> str:
        names = self.names[kind]
        if depth > 1 or self.random.random() < 0.35:
            return self.random.choice(names)
        text = self.random.choice({"n": NUMBER, "a": ARRAY, "t": TENSOR}[kind])
        for part in "nat":
            while f"{{{part}}}" in text:
                text = text.replace(f"{{{part}}}", self.expression(part, depth + 1), 1)
        return text

    def statement(self, name: str) -> None:
        """One more statement; most statements give a result in some call."""
        kind = self.random.choice("naaat ww")
        for _ in range(6):
            self.body.append(f"{name} = {self.expression(kind)}" if kind in self.names else self.write(kind))
            if self.random.random() < 0.05 or any(map(is_result, results(self.text, self.calls, "<tried>", None)[::2])):
                self.names.get(kind, []).append(name)
                return
            self.body.pop()

    def write(self, kind: str) -> str:
        text = self.random.choice(WRITES).replace("{v}", self.random.choice(self.names["a"]))
        for part in "na":
            text = text.replace(f"{{{part}}}", self.expression(part, 1))
        return text if kind == "w" else self.random.choice(("if i > 0: ", "for _ in range(2): ")) + text

    def array(self) -> str:
        shape = self.random.choice(SHAPES)
        made = self.random.choice(CONTENTS).format(s=shape, n=f"math.prod({shape})")
        return f"{made}.astype(np.{self.random.choice(DTYPES)})"

    def arguments(self) -> list[str]:
        choose = self.random.choice
        given = [choose(TENSORS), self.array(), self.array(), choose(NUMBERS), choose(NUMBERS), choose("012")]
        calls = []
        for _ in range(3):
            calls.append(f"({', '.join(given)})")
            place = self.random.randrange(6)
            given[place] = (
                choose(TENSORS),
                self.array(),
                self.array(),
                choose(NUMBERS),
                choose(NUMBERS),
                choose("012"),
            )[place]
        return calls


def told(value: Any, seen: dict[int, Any]) -> Any:
    """All that a program can observe of a result; `seen` holds the objects that have an identity."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        if id(value) in seen:
            return "same", [*seen].index(id(value))
        seen[id(value)] = value
        return type(value).__name__, str(value.dtype), tuple(value.shape), value.tolist()
    if isinstance(value, np.generic):
        return type(value).__name__, value.item()
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [told(v, seen) for v in value]
    return type(value).__name__, value


def shared(values: Sequence[Any]) -> list[bool]:
    plain = [np.asarray(v) for v in values if isinstance(v, (np.ndarray, torch.Tensor))]
    return [bool(np.may_share_memory(a, b)) and bool(a.size and b.size) for i, a in enumerate(plain) for b in plain[:i]]


def alike(a: Any, b: Any, tolerance: float) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(alike(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return a == b or (a != a and b != b) or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    return bool(a == b)


def results(text: str, calls: Sequence[str], name: str, backend: str | None) -> list[Any]:
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace: dict[str, Any] = {"np": np, "torch": torch, "math": math}
    exec(compile(text, name, "exec"), namespace)
    fn = namespace["f"] if backend is None else pycompiler.compile(namespace["f"], backend=backend)
    found: list[Any] = []
    for call in calls:
        args = eval(call, namespace)
        try:
            result = fn(*args)
            found.append((told(result, {}), shared((*result, *args))))
        except Exception as e:
            found.append((type(e).__name__, str(e)))
        found.append(told(args, {}))
    return found


def is_result(found: Any) -> bool:
    return isinstance(found[0], tuple)


def run(seed: int, backend: str = "eager") -> bool:
    """Whether any call of the program gave a result; AssertionError if a call differs from eager."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = Program(seed)
        want = results(program.text, program.calls, f"<arrays {seed}>", None)
        got = results(program.text, program.calls, f"<arrays {seed}, compiled>", backend)
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        tolerance = 2e-2 if "float16" in str(a) else 1e-4 if "float32" in str(a) else 1e-9
        where = f"{'after' if i % 2 else 'of'} {program.calls[i // 2]}, seed {seed}"
        assert alike(a, b, tolerance), f"{program.text}\n{where}\neager    {a}\ncompiled {b}"
    return any(map(is_result, want[::2]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.arrays", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--backend", default="eager")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        try:
            run(seed, chosen.backend)
        except AssertionError as e:
            failed += 1
            print(e, flush=True)
    print(f"{chosen.count} programs, {failed} that differ")


if __name__ == "__main__":
    main()
