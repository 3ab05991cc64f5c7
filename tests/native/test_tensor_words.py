"""Comparison of tensors as words of memory: every kind of tensor, every hidden change, against the oracle."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pycompiler import _native
from pycompiler.ir.guards import Guard, TensorSpec, first_failure
from pycompiler.ir.source import Scope, local

X = local("x")
HOLDER = X.then("instance_dict").dict_item("tensors")


class Holder:
    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors


def samples() -> dict[str, torch.Tensor]:
    """Tensors of every number of dimensions, around the five that are stored inline, and of more than one block."""
    shapes = [(), (3,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 1, 3, 1, 2), (1, 2, 1, 2, 1, 2), (0, 4)]
    made = {f"plain {s}": torch.zeros(s) for s in shapes}
    made |= {f"parameter {s}": torch.nn.Parameter(torch.zeros(s)) for s in shapes}
    made |= {f"a second parameter {s}": torch.nn.Parameter(torch.zeros(s)) for s in shapes}
    made["transposed"] = torch.zeros(3, 4, 5).transpose(0, 2)
    made["frozen"] = torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    made["no longer requires grad"] = torch.zeros(2, 3, requires_grad=True).requires_grad_(False)
    made["computed"] = torch.zeros(2, 3, requires_grad=True) * 2
    made["integers"] = torch.zeros(2, 3, dtype=torch.int64)
    made["conjugate"] = torch.zeros(3, dtype=torch.complex64).conj()
    made["meta"] = torch.zeros(2, 3, device="meta")
    made["sparse"] = torch.zeros(2, 3).to_sparse()
    return made


# Each function changes a field that the guard compares, if the tensor allows the change.
CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype": lambda t: setattr(t, "data", t.detach().to(torch.complex128 if t.is_complex() else torch.float16)),
    "one dimension more": lambda t: setattr(t, "data", t.detach()[None].clone()),
    "first size": lambda t: setattr(t, "data", torch.cat([t.detach(), t.detach()[:1]])),
    "last size": lambda t: setattr(t, "data", torch.cat([t.detach(), t.detach()[..., :1]], -1)),
    "strides": lambda t: setattr(t, "data", t.detach().transpose(0, -1).contiguous().transpose(0, -1)),
    "resized": lambda t: t.resize_(7),
    "requires_grad": lambda t: t.requires_grad_(not t.requires_grad),
    "a gradient function": lambda t: t.mul_(torch.ones((), requires_grad=True)),
    "class": lambda t: setattr(t, "__class__", Renamed),
    "another TensorImpl": lambda t: torch.utils.swap_tensors(t, torch.zeros(9, dtype=torch.int8)),
}


class Renamed(torch.nn.Parameter):
    pass


class Checked:
    def __init__(self, tensors: dict[str, torch.Tensor], specs: dict[str, TensorSpec] | None = None) -> None:
        self.holder = Holder(tensors)
        specs = specs or {name: TensorSpec.of(t) for name, t in tensors.items()}
        self.guards = [Guard("tensor", HOLDER.dict_item(name), spec) for name, spec in specs.items()]
        self.tree = _native.GuardTree(self.guards, ("x",))

    def holds(self) -> bool:
        got = self.tree.check({"x": self.holder}, {})
        want = first_failure(self.guards, Scope({"x": self.holder}, {}))
        assert (got is None) == (want is None), (got, want)
        return got is None


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_every_tensor(change: str) -> None:
    changed = 0
    for name in samples():
        checked = Checked(samples())
        assert all(checked.holds() for _ in range(3))
        tensor = checked.holder.tensors[name]
        before = TensorSpec.of(tensor)
        try:
            CHANGES[change](tensor)
        except (RuntimeError, TypeError, IndexError, NotImplementedError):
            continue  # this change does not apply to the tensor
        if TensorSpec.of(tensor) == before:
            assert checked.holds(), name
            continue
        changed += 1
        assert not checked.holds(), name
        assert not checked.holds(), name
    assert changed >= 3


def test_sizes_that_are_not_compared() -> None:
    """Each subset of dynamic sizes and strides, against tensors that differ in one."""
    base = torch.zeros(2, 3, 4)
    others = [base.new_zeros(s) for s in ((2, 3, 4), (9, 3, 4), (2, 9, 4), (2, 3, 9), (2, 3), (2, 3, 4, 1))]
    others += [torch.empty_strided((2, 3, 4), s) for s in ((24, 4, 1), (12, 8, 1), (12, 4, 2))]
    for mask in itertools.product([False, True], repeat=6):
        dims = [None if hide else v for hide, v in zip(mask, (*base.shape, *base.stride()), strict=True)]
        spec = replace(TensorSpec.of(base), sizes=tuple(dims[:3]), strides=tuple(dims[3:]))
        checked = Checked({"a": base, "b": torch.zeros(1), "c": torch.zeros(2), "d": torch.zeros(3)})
        checked.guards[0] = replace(checked.guards[0], arg=spec)
        checked.tree = _native.GuardTree(checked.guards, ("x",))
        assert checked.holds() and checked.holds()
        for other in others:
            base.data = other
            checked.holds()
        base.data = others[0]
        assert checked.holds()


def test_a_flag_that_flips_again_and_again_is_evaluated() -> None:
    """A tensor that changes often does not disable the fast path for the others."""
    if not _native.set_fast_guards(True):
        pytest.skip("dicts of this CPython have no versions")
    checked = Checked(samples())
    tensor = checked.holder.tensors["parameter (2, 3)"]
    for _ in range(60):
        assert checked.holds()
        tensor.requires_grad_(False)
        assert not checked.holds()
        tensor.requires_grad_(True)
    assert checked.holds() and checked.holds()
    assert checked.tree.is_fast


def test_arguments_beside_known_tensors() -> None:
    """`no_alias` between a module's tensors, which the recording knows, and arguments, which it does not."""
    tensors = {str(i): torch.nn.Parameter(torch.zeros(3)) for i in range(20)}
    sources = [HOLDER.dict_item(name) for name in tensors] + [local("a"), local("b")]
    guards = [Guard("tensor", s, TensorSpec.of(tensors["0"])) for s in sources[:-2]]
    guards.append(Guard("no_alias", sources[3], None, tuple(sources[:3] + sources[4:])))
    tree = _native.GuardTree(guards, ("x", "a", "b"))
    holder, fresh = Holder(tensors), [torch.zeros(3) for _ in range(4)]
    pairs = [(fresh[0], fresh[1]), (fresh[2], fresh[3]), (fresh[1], fresh[0]), (tensors["7"], fresh[1])]
    pairs += [(fresh[1], tensors["0"]), (fresh[1], fresh[1]), (tensors["7"], tensors["7"]), (fresh[0], fresh[1])]
    for _ in range(3):
        for a, b in pairs:
            scope = {"x": holder, "a": a, "b": b}
            assert (tree.check(scope, {}) is None) == (first_failure(guards, Scope(scope, {})) is None)


def test_the_same_tensors_in_another_holder() -> None:
    tensors = samples()
    checked = Checked(tensors)
    assert checked.holds() and checked.holds()
    checked.holder = Holder(dict(tensors))
    assert checked.holds() and checked.holds()
    checked.holder = copy.copy(checked.holder)
    checked.holder.tensors = {**tensors, "meta": torch.zeros(2, 3)}
    assert not checked.holds()
