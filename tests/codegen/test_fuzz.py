"""Random programs of pointwise loops and reductions: the interpreter against generated C++ (one build for many)."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from kernel_harness import Body, buffer, build_all, loop, program, run_plan, whole

from pycompiler.ir.interpret import interpret
from pycompiler.ir.loops import Buffer, Extern, Program
from pycompiler.ir.plan import CountVersions

UNARY = ("neg", "abs", "exp", "tanh", "sigmoid", "square", "sin", "erf", "floor", "sign")
STEADY = (
    "neg",
    "abs",
    "tanh",
    "sigmoid",
    "erf",
)  # without steps, and bounded: values for the comparison of old and new
BINARY = ("add", "sub", "mul", "maximum", "minimum")
COPY = torch.ops.aten.copy_.default
SHAPES = ((6, 10), (10,), (4, 6, 10), (64, 40), (40,), (3, 1, 40), (33, 70), (2, 5, 3, 8))


class Maker:
    """A random program: each loop reads earlier buffers, broadcast, transposed, shifted, flipped, or folded."""

    def __init__(self, seed: int, stores: bool = False) -> None:
        self.stores = stores
        self.unary = STEADY if stores else UNARY
        self.random = random.Random(seed)
        self.shape = self.random.choice(SHAPES)
        self.inputs = [buffer(f"in{k}", s) for k, s in enumerate((self.shape, self.shape, self.shape[-1:]))]
        self.pool: list[Buffer] = list(self.inputs)
        self.nodes: list[Any] = []

    def read(self, b: Body, source: Buffer, at: Any, sizes: Any) -> int | None:
        """A load of `source` at index `at` of a space `sizes`, broadcast from the right; sometimes transposed or
        moved."""
        shape = [n.as_int() for n in source.shape]
        if len(shape) > len(at):
            return None
        index = list(at[len(at) - len(shape) :])
        extent = list(sizes[len(sizes) - len(shape) :])
        if len(shape) >= 2 and self.random.random() < 0.15:
            index[-1], index[-2] = index[-2], index[-1]
            extent[-1], extent[-2] = extent[-2], extent[-1]
        if any(n not in (1, e) for n, e in zip(shape, extent, strict=True)):
            return None
        index = [0 if n == 1 else i for n, i in zip(shape, index, strict=True)]
        if shape and shape[-1] > 1 and self.random.random() < 0.15:  # flipped
            index[-1] = shape[-1] - 1 - index[-1]
        return b.load(source, index)

    def value(self, b: Body, at: Any, sizes: Any) -> int:
        values = []
        for source in self.random.sample(self.pool, min(len(self.pool), self.random.randint(1, 3))):
            v = self.read(b, source, at, sizes)
            if v is not None:
                values.append(v)
        if not values:
            values.append(b.const(self.random.uniform(-1, 1)))
        for _ in range(self.random.randint(0, 3)):
            values.append(b.op(self.random.choice(self.unary), self.random.choice(values)))
        while len(values) > 1:
            values.append(b.op(self.random.choice(BINARY), values.pop(), values.pop()))
        return b.op("tanh", values[0]) if self.random.random() < 0.5 else values[0]

    def step(self, k: int) -> None:
        name = f"b{k}"
        if self.random.random() < 0.35:
            folded = self.random.randint(1, len(self.shape))
            lead = self.random.random() < 0.3
            n = len(self.shape)
            dims = list(range(folded)) if lead else list(range(n - folded, n))
            shape = tuple(1 if d in dims else s for d, s in enumerate(self.shape))
            fold = [self.shape[d] for d in dims if self.shape[d] != 1]
            if not fold:
                return
            kind = self.random.choice(("sum", "max", "min", "sum", "welford"))
            out = buffer(name, shape)

            def reduced(b: Body, i: Any, r: Any) -> int:
                rest = iter(r)
                at = [(next(rest) if self.shape[d] != 1 else 0) if d in dims else i[d] for d in range(n)]
                return self.value(b, at, self.shape)

            node = loop(out, reduced, (kind, fold))
            if kind == "welford":
                m2 = buffer(name + "m", shape)
                node = dataclasses.replace(node, out=(out, m2), store_index=node.store_index * 2)
                self.pool.append(m2)
        else:
            shape = self.shape if self.random.random() < 0.8 else self.shape[-1:]
            out = buffer(name, shape)
            node = loop(out, lambda b, i, r: self.value(b, i, shape))
        self.nodes.append(node)
        self.pool.append(out)

    def make(self, name: str) -> Program:
        for k in range(self.random.randint(2, 9)):
            self.step(k)
        made = [b for b in self.pool if b not in self.inputs]
        outputs = [b for b in made if self.random.random() < 0.4] or made[-1:]
        if self.stores:
            outputs = [b for b in outputs if self.random.random() < 0.5]
            self.nodes += self.copies([b for b in made if b not in outputs])
        p = program(self.inputs, self.nodes, outputs)
        p.name = name
        return p

    def copies(self, values: list[Buffer]) -> list[Extern]:
        """New values of inputs, as autograd ends a graph with in-place writes."""
        found = []
        for target in self.inputs:
            fitting = [b for b in values if b.shape == target.shape]
            if fitting:
                values.remove(value := self.random.choice(fitting))
                found.append(Extern(COPY, (whole(target), whole(value)), {}, (None,), (target.name,)))
        return found


@pytest.mark.parametrize("batch", range(3))
def test_random_stores(batch: int) -> None:
    """Programs that end in new values of inputs: values, and one version for each."""
    programs = [Maker(20000 + 1000 * batch + k, stores=True).make(f"stores{k}") for k in range(40)]
    plans = build_all(programs)
    in_place = 0
    for k, (p, plan) in enumerate(zip(programs, plans, strict=True)):
        torch.manual_seed(k)
        ours = [torch.randn([n.as_int() for n in b.shape]) for b in p.inputs if b is not None]
        theirs = [t.clone() for t in ours]
        pairs = [*zip(run_plan(plan, ours), interpret(p, theirs), strict=True), *zip(ours, theirs, strict=True)]
        for a, b in pairs:
            scale = float(b.abs().nan_to_num(0, 0, 0).max()) if b.numel() else 1.0
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5 * max(1.0, scale), equal_nan=True,
                                       msg=lambda m: f"seed {20000 + 1000 * batch + k}: {m}")  # fmt: skip
        assert [t._version for t in ours] == [t._version for t in theirs]
        in_place += sum(len(s.slots) for s in plan.steps if isinstance(s, CountVersions))
    assert in_place >= 20


@pytest.mark.parametrize("batch", range(4))
def test_random_programs(batch: int) -> None:
    programs = [Maker(1000 * batch + k).make(f"fuzz{k}") for k in range(40)]
    plans = build_all(programs)
    for k, (p, plan) in enumerate(zip(programs, plans, strict=True)):
        torch.manual_seed(k)
        inputs = [torch.randn([n.as_int() for n in b.shape]) for b in p.inputs if b is not None]
        got = run_plan(plan, inputs)
        for name, a, b in zip([o.buffer for o in p.outputs], got, interpret(p, inputs), strict=True):  # type: ignore[union-attr]
            scale = float(b.abs().nan_to_num(0, 0, 0).max()) if b.numel() else 1.0
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5 * max(1.0, scale), equal_nan=True,
                                       msg=lambda m: f"seed {1000 * batch + k}, {name}: {m}")  # fmt: skip
