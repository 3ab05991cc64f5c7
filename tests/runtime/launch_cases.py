"""Plans with launches for the fake driver (`fake_driver.c`)."""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.ir.plan import Binary, Launch, Plan, SlotRef
from pycompiler.runtime.rules import check_plan
from pycompiler.symbolic.expr import Expr

IMAGE = b"module add_one add_one_anywhere numbers broken\0"  # contains its own length, like an ELF file
N = Expr.sym("n")
BLOCK = 32


def notes(fake: Any) -> list[str]:
    return str(fake.fake_notes().decode()).splitlines()


def binary(entry: str, *parameters: str, image: bytes = IMAGE, shared: int = 0) -> Binary:
    return Binary(image, entry, parameters, BLOCK, shared)


def add_one(x: int, y: int, n: Any = N, device: int = 0, kernel: str = "add_one") -> Launch:
    programs = (Expr.of(n) + BLOCK - 1) // BLOCK
    where = torch.device("cuda", device)
    return Launch(kernel, where, (programs, 1, 1), (SlotRef(x), SlotRef(y), n), ("*fp32", "*fp32", "i64"), {})


ADD_ONE = {"add_one": binary("add_one", "u64", "u64", "u64")}


def plan_of(steps: list[Any], outputs: list[Any], n_inputs: int, n_slots: int, binaries: dict[str, Binary]) -> Plan:
    module = "".join(f"def {name}():\n    pass\n" for name in binaries)
    plan = Plan(n_inputs, n_slots, steps, outputs, {}, name="hand", module=module, binaries=binaries)
    plan.symbols = {"n": (0, 0)}
    check_plan(plan)
    return plan
