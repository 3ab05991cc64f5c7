"""Hand-made plans and their kernels, for the tests of both executors and of the printed form."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pycompiler.ir.plan import (
    Alloc,
    Aten,
    Convolution,
    CopyInto,
    CountVersions,
    Expect,
    Free,
    Kernel,
    Pack,
    Plan,
    Product,
    SlotRef,
    Step,
    View,
)
from pycompiler.symbolic.expr import Expr

SOURCE = r"""
#include <cstdint>
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT int64_t add_one(void** p, const int64_t* s, int32_t threads) {
    const float* x = (const float*)p[0];
    float* y = (float*)p[1];
    for (int64_t i = 0; i < s[0]; i++) y[i] = x[i] + 1.0f;
    return 0;
}
EXPORT int64_t multiply(void** p, const int64_t* s, int32_t threads) {
    const float *x = (const float*)p[0], *y = (const float*)p[1];
    float* z = (float*)p[2];
    for (int64_t i = 0; i < s[0]; i++) z[i] = x[i] * y[i];
    return 0;
}
EXPORT int64_t spin(void** p, const int64_t* s, int32_t threads) {
    volatile float* y = (volatile float*)p[0];
    for (int64_t i = 0; i < s[0]; i++) y[0] = (float)i;
    return 0;
}
EXPORT int64_t gather(void** p, const int64_t* s, int32_t threads) {
    const float* x = (const float*)p[0];
    const int64_t* index = (const int64_t*)p[1];
    float* y = (float*)p[2];
    for (int64_t i = 0; i < s[1]; i++) {
        if (index[i] < 0 || index[i] >= s[0]) return 1;
        y[i] = x[index[i]];
    }
    return 0;
}
EXPORT int64_t misaligned(void** p, const int64_t* s, int32_t threads) {
    for (int64_t i = 0; i < s[0]; i++) if (((uintptr_t)p[i]) % 64) return 2;
    return 0;
}
extern "C" int PyGILState_Check(void);
EXPORT int64_t gil_is_held(void** p, const int64_t* s, int32_t threads) {
    *(float*)p[0] = PyGILState_Check();
    return 0;
}
EXPORT int64_t unknown_code(void** p, const int64_t* s, int32_t threads) { return 77; }
"""
# A module of kernels like Triton's: launched by `kernel[grid](arguments, constants)`.
MODULE = """
class On:
    def __init__(self, function):
        self.function = function

    def __getitem__(self, grid):
        return lambda *arguments, **constants: self.function(grid, *arguments, **constants)

@On
def add_one(grid, x, y, n, BLOCK):
    assert grid[0] * BLOCK >= n
    y.copy_(x + 1)

@On
def fail(grid, x):
    raise OverflowError("too many blocks")
"""
CPU = torch.device("cpu")
aten = torch.ops.aten


def build_kernels(folder: Path) -> str:
    """The library of SOURCE."""
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text(SOURCE)
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return str(library)


def ref(*slots: int) -> tuple[SlotRef, ...]:
    return tuple(SlotRef(s) for s in slots)


def f32(slot: int, *shape: int) -> Alloc:
    """A contiguous allocation."""
    stride, n = [], 1
    for size in reversed(shape):
        stride.insert(0, n)
        n *= size
    return Alloc(slot, shape, tuple(stride), torch.float32, CPU)


@dataclass
class Case:
    """A plan without its library, and inputs for it."""

    n_inputs: int
    n_slots: int
    steps: list[Step]
    outputs: list[int | tuple[object]]
    inputs: Callable[[], list[Any]]
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    symbols: dict[str, tuple[int, int]] = field(default_factory=dict)

    def plan(self, name: str, library: str) -> Plan:
        return Plan(
            self.n_inputs, self.n_slots, self.steps, self.outputs, self.constants, library, SOURCE, name, self.symbols
        )


def some(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


n, m = Expr.sym("n"), Expr.sym("m")
CASES: dict[str, Case] = {
    "one_kernel": Case(1, 2, [f32(1, 4), Kernel("add_one", (0, 1), (4,), 4)], [1], lambda: [some(4)]),
    "chain_in_scratch": Case(
        1,
        5,
        [
            f32(1, 100),
            Kernel("add_one", (0, 1), (100,)),
            f32(2, 100),
            Kernel("add_one", (1, 2), (100,)),
            Free((1,)),
            f32(3, 100),
            Kernel("multiply", (0, 2, 3), (100,)),
            Free((2,)),
            f32(4, 100),
            Kernel("add_one", (3, 4), (100,)),
        ],
        [4],
        lambda: [some(100)],
    ),
    "released_gil": Case(
        1,
        3,
        [f32(1, 50_000), Kernel("add_one", (0, 1), (50_000,), 50_000), Aten(aten.relu.default, ref(1), {}, (2,))],
        [2, 1],
        lambda: [some(50_000)],
    ),
    "mm": Case(2, 3, [Aten(aten.mm.default, ref(0, 1), {}, (2,))], [2], lambda: [some(3, 4), some(4, 5)]),
    "mm_empty": Case(2, 3, [Aten(aten.mm.default, ref(0, 1), {}, (2,))], [2], lambda: [some(3, 0), some(0, 5)]),
    "mm_float64": Case(
        2, 3, [Aten(aten.mm.default, ref(0, 1), {}, (2,))], [2], lambda: [some(3, 4).double(), some(4, 5).double()]
    ),
    "addmm": Case(
        3, 4, [Aten(aten.addmm.default, ref(0, 1, 2), {}, (3,))], [3], lambda: [some(5), some(3, 4), some(4, 5)]
    ),
    "addmm_narrow": Case(
        3, 4, [Aten(aten.addmm.default, ref(0, 1, 2), {}, (3,))], [3], lambda: [some(2), some(3, 6), some(6, 2)]
    ),
    "addmm_scaled": Case(
        3,
        4,
        [Aten(aten.addmm.default, ref(0, 1, 2), {"beta": 2, "alpha": 0.5}, (3,))],
        [3],
        lambda: [some(5), some(3, 4), some(5, 4).t()],
    ),
    "addmm_integers": Case(
        3,
        4,
        [Aten(aten.addmm.default, ref(0, 1, 2), {"beta": 2}, (3,))],
        [3],
        lambda: [torch.arange(4), torch.arange(6).view(2, 3), torch.arange(12).view(3, 4)],
    ),
    "bmm": Case(2, 3, [Aten(aten.bmm.default, ref(0, 1), {}, (2,))], [2], lambda: [some(2, 3, 4), some(2, 4, 5)]),
    "baddbmm": Case(
        3,
        4,
        [Aten(aten.baddbmm.default, ref(0, 1, 2), {"alpha": 2.0}, (3,))],
        [3],
        lambda: [some(2, 3, 5), some(2, 3, 4), some(2, 4, 5)],
    ),
    "convolution": Case(
        3,
        4,
        [Aten(aten.convolution.default, (*ref(0, 1, 2), [1, 1], [1, 1], [1, 1], False, [0, 0], 1), {}, (3,))],
        [3],
        lambda: [some(2, 3, 8, 8), some(4, 3, 3, 3), some(4)],
    ),
    "convolution_without_bias": Case(
        2,
        3,
        [Aten(aten.convolution.default, (*ref(0, 1), None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1), {}, (2,))],
        [2],
        lambda: [some(2, 3, 8, 8), some(4, 3, 3, 3)],
    ),
    "convolution_backward": Case(
        3,
        6,
        [
            Aten(
                aten.convolution_backward.default,
                (*ref(0, 1, 2), [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]),
                {},
                (3, 4, 5),
            )
        ],
        [3, 4, 5],
        lambda: [some(2, 4, 8, 8), some(2, 3, 8, 8), some(4, 3, 3, 3)],
    ),
    "convolution_backward_masked": Case(
        3,
        5,
        [
            Aten(
                aten.convolution_backward.default,
                (*ref(0, 1, 2), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]),
                {},
                (3, 4, None),
            )
        ],
        [3, 4],
        lambda: [some(2, 4, 8, 8), some(2, 3, 8, 8), some(4, 3, 3, 3)],
    ),
    "attention": Case(
        3,
        5,
        [
            Aten(
                aten._scaled_dot_product_flash_attention_for_cpu.default,
                (*ref(0, 1, 2), 0.0, True),
                {"scale": 0.3},
                (3, 4),
            )
        ],
        [3, 4],
        lambda: [some(2, 2, 8, 16) for _ in range(3)],
    ),
    "attention_masked": Case(
        4,
        6,
        [
            Aten(
                aten._scaled_dot_product_flash_attention_for_cpu.default,
                ref(0, 1, 2),
                {"attn_mask": SlotRef(3)},
                (4, 5),
            )
        ],
        [4],
        lambda: [*(some(2, 2, 8, 16) for _ in range(3)), some(8, 8)],
    ),
    "max_pool": Case(
        1,
        3,
        [Aten(aten.max_pool2d_with_indices.default, (*ref(0), [2, 2], [2, 2]), {}, (1, 2))],
        [1, 2],
        lambda: [some(1, 2, 8, 8)],
    ),
    "avg_pool": Case(
        1,
        2,
        [Aten(aten.avg_pool2d.default, (*ref(0), [2, 2]), {"divisor_override": 3}, (1,))],
        [1],
        lambda: [some(1, 2, 8, 8)],
    ),
    "cat": Case(
        2, 3, [Aten(aten.cat.default, (list(ref(0, 1, 0)), 1), {}, (2,))], [2], lambda: [some(2, 3), some(2, 5)]
    ),
    "index": Case(
        2,
        3,
        [Aten(aten.index.Tensor, (*ref(0), [None, SlotRef(1)]), {}, (2,))],
        [2],
        lambda: [some(3, 4), torch.tensor([3, 0, 1])],
    ),
    "index_put": Case(
        3,
        4,
        [Aten(aten.index_put.default, (*ref(0), [SlotRef(1)], *ref(2), True), {}, (3,))],
        [3],
        lambda: [some(4), torch.tensor([0, 0, 3]), some(3)],
    ),
    "cumsum_dtype": Case(
        1, 2, [Aten(aten.cumsum.default, (*ref(0), 0), {"dtype": torch.float64}, (1,))], [1], lambda: [some(6)]
    ),
    "topk": Case(1, 3, [Aten(aten.topk.default, (*ref(0), 3), {}, (1, None))], [1], lambda: [some(6)]),
    "sort_stable": Case(
        1,
        3,
        [Aten(aten.sort.stable, ref(0), {"stable": True, "descending": True}, (1, 2))],
        [1, 2],
        lambda: [torch.tensor([1.0, 2.0, 1.0])],
    ),
    "dispatcher": Case(1, 2, [Aten(aten.flip.default, (*ref(0), [0, 1]), {}, (1,))], [1], lambda: [some(3, 4)]),
    "dispatcher_layer_norm": Case(
        3,
        6,
        [Aten(aten.native_layer_norm.default, (*ref(0), [4], *ref(1), None, 1e-5), {}, (3, 4, 5))],
        [3, 4, 5],
        lambda: [some(3, 4), some(4), some(1)],
    ),
    "dispatcher_embedding": Case(
        2, 3, [Aten(aten.embedding.default, ref(0, 1), {}, (2,))], [2], lambda: [some(5, 3), torch.tensor([1, 4])]
    ),
    "dispatcher_full_dtype": Case(
        1,
        2,
        [Aten(aten.to.dtype_layout, ref(0), {"dtype": torch.float16, "device": CPU, "layout": torch.strided}, (1,))],
        [1],
        lambda: [some(3)],
    ),
    "dispatcher_clone_format": Case(
        1,
        2,
        [Aten(aten.clone.default, ref(0), {"memory_format": torch.channels_last}, (1,))],
        [1],
        lambda: [some(2, 3, 4, 5)],
    ),
    "dispatcher_string": Case(
        3,
        4,
        [Aten(aten.scatter_reduce.two, (SlotRef(0), 0, SlotRef(1), SlotRef(2), "amax"), {"include_self": False}, (3,))],
        [3],
        lambda: [some(3), torch.tensor([0, 0, 2]), some(3)],
    ),
    "dispatcher_float_list": Case(
        1,
        2,
        [Aten(aten.upsample_nearest2d.vec, (*ref(0), None, [2.0, 2.0]), {}, (1,))],
        [1],
        lambda: [some(1, 2, 3, 3)],
    ),
    "list_result": Case(1, 3, [Aten(aten.split.Tensor, (*ref(0), 2), {}, (1, 2))], [1, 2], lambda: [some(4, 3)]),
    "python_scalar": Case(1, 2, [Aten(aten.add.Scalar, (*ref(0), 3), {}, (1,))], [1], lambda: [torch.arange(4)]),
    "python_nested": Case(
        2, 3, [Aten(aten._foreach_add.List, (list(ref(0)), list(ref(1))), {}, (2,))], [2], lambda: [some(3), some(3)]
    ),
    "random": Case(
        1, 3, [Aten(aten.native_dropout.default, (*ref(0), 0.5, True), {}, (1, 2))], [1, 2], lambda: [some(50)]
    ),
    "view_of_input": Case(1, 2, [View(1, 0, (2, 2), (3, 1), 1)], [1], lambda: [some(3, 3)[1:]]),
    "view_for_kernel": Case(
        1,
        4,
        [
            f32(1, 10),
            Kernel("add_one", (0, 1), (10,)),
            View(2, 1, (5,), (1,), 5),
            f32(3, 5),
            Free((1,)),
            Kernel("add_one", (2, 3), (5,)),
            Free((2,)),
        ],
        [3],
        lambda: [some(10)],
    ),
    "view_for_both": Case(
        1,
        5,
        [
            f32(1, 10),
            Kernel("add_one", (0, 1), (10,)),
            View(2, 1, (5,), (1,), 5),
            Free((1,)),
            Aten(aten.relu.default, ref(2), {}, (3,)),
            f32(4, 5),
            Kernel("add_one", (2, 4), (5,)),
        ],
        [3, 4],
        lambda: [some(10)],
    ),
    "view_of_result": Case(
        1,
        4,
        [
            Aten(aten.relu.default, ref(0), {}, (1,)),
            View(2, 1, (4,), (1,), 0),
            Free((1,)),
            f32(3, 4),
            Kernel("add_one", (2, 3), (4,)),
        ],
        [3],
        lambda: [some(4)],
    ),
    "view_cast": Case(1, 2, [View(1, 0, (4,), (1,), 1, torch.int32)], [1], lambda: [some(8)[2:]]),
    "view_cast_smaller": Case(1, 2, [View(1, 0, (6,), (1,), 3, torch.int16)], [1], lambda: [some(8)[2:]]),
    "strided_alloc": Case(
        1, 2, [Alloc(1, (2, 3), (1, 2), torch.float32, CPU), Kernel("add_one", (0, 1), (6,))], [1], lambda: [some(6)]
    ),
    "mutation": Case(1, 2, [f32(1, 4), Kernel("add_one", (0, 1), (4,)), CopyInto(0, 1)], [0, 1], lambda: [some(4)]),
    "stored in place": Case(1, 1, [CountVersions((0,)), Kernel("add_one", (0, 0), (4,))], [0], lambda: [some(4)]),
    "product": Case(  # of whole numbers: exact in any order
        2,
        3,
        [
            Alloc(2, (7, 9), (9, 1), torch.float32, CPU),
            Product((0, 1, 2), (3, 2), (10, 1, 1, 10, 9), (7, 9, 5)),
        ],
        [2],
        lambda: [some(80).mul(8).round(), some(100).mul(8).round()],
    ),
    "convolution of depth": Case(  # of whole numbers: exact in any order
        3,
        4,
        [
            Alloc(3, (2, 20, 3, 2), (120, 1, 40, 20), torch.float32, CPU),
            Convolution(
                (0, 1, 3, 2),
                (1, 0, 0),
                (2, 20, 5, 4),
                (3, 2),
                (400, 80, 20, 120, 40, 20),
                (3, 3),
                (2, 2),
                (1, 1),
                (1, 1),
            ),
        ],
        [3],
        lambda: [some(801).mul(8).round(), some(20, 1, 3, 3).mul(8).round(), some(20).mul(8).round()],
    ),
    "convolution of all channels": Case(  # of whole numbers: exact in any order
        3,
        4,
        [
            Alloc(3, (2, 6, 3, 2), (36, 1, 12, 6), torch.float32, CPU),
            Convolution(
                (0, 1, 3, 2),
                (1, 0, 0),
                (2, 20, 5, 4),
                (3, 2),
                (400, 80, 20, 36, 12, 6),
                (3, 3),
                (2, 2),
                (1, 1),
                (1, 1),
                6,
            ),
        ],
        [3],
        lambda: [some(801).mul(8).round(), some(6, 20, 3, 3).mul(8).round(), some(6).mul(8).round()],
    ),
    "packed": Case(  # any operator can stand for the one that packs
        1,
        3,
        [Pack(1, 0, aten.tanh.default, ()), Aten(aten.neg.default, ref(1), {}, (2,)), Free((1,))],
        [2],
        lambda: [some(2, 3)],
    ),
    "as expected": Case(
        1,
        3,
        [
            Aten(aten.relu.default, ref(0), {}, (1,)),
            Expect(1, (4,), (1,), torch.float32, CPU),
            f32(2, 4),
            Kernel("add_one", (1, 2), (4,)),
        ],
        [2],
        lambda: [some(4)],
    ),
    "other strides than expected": Case(
        1,
        3,
        [
            Aten(aten.t.default, ref(0), {}, (1,)),
            Expect(1, (3, 2), (2, 1), torch.float32, CPU),
            Alloc(2, (3, 2), (2, 1), torch.float32, CPU),
            Kernel("add_one", (1, 2), (6,)),
        ],
        [2, 1],
        lambda: [some(2, 3)],
    ),
    "another dtype than expected": Case(
        1,
        3,
        [
            Aten(aten.to.dtype, (*ref(0), torch.float64), {}, (1,)),
            Expect(1, (4,), (1,), torch.float32, CPU),
            f32(2, 4),
            Kernel("add_one", (1, 2), (4,)),
        ],
        [2, 1],
        lambda: [some(4)],
    ),
    "constant": Case(
        1,
        3,
        [f32(2, 3), Kernel("multiply", (0, 1, 2), (3,))],
        [2, 1],
        lambda: [some(3)],
        constants={1: torch.tensor([1.0, 2.0, 3.0])},
    ),
    "constant_in_operator": Case(
        1,
        4,
        [Aten(aten.mul.Tensor, ref(0, 1), {}, (2,)), Aten(aten.add.Scalar, (*ref(1), 1), {}, (3,))],
        [2, 3],
        lambda: [some(3)],
        constants={1: torch.tensor([1.0, 2.0, 3.0])},
    ),
    "outputs": Case(
        2, 3, [f32(2, 4), Kernel("add_one", (0, 2), (4,))], [2, 1, (None,), 2, (7,), 0], lambda: [some(4), some(2)]
    ),
    "nothing": Case(0, 0, [], [], list),
    "dynamic": Case(
        1,
        4,
        [
            Alloc(1, (n, m), (m, Expr.of(1)), torch.float32, CPU),
            Kernel("add_one", (0, 1), (n * m,)),
            Aten(aten.flip.default, (*ref(1), [0]), {}, (2,)),
            Aten(aten.narrow.default, (*ref(2), 0, 0, n // 2), {}, (3,)),
        ],
        [1, 3],
        lambda: [some(5, 3)],
        symbols={"n": (0, 0), "m": (0, 1)},
    ),
    "numbers": Case(  # n is an input; of the buffers between kernels, the first and the third share a place
        2,
        6,
        [
            Alloc(2, (n,), (Expr.of(1),), torch.float32, CPU),
            Kernel("add_one", (1, 2), (n,)),
            Alloc(3, (n,), (Expr.of(1),), torch.float32, CPU),
            Kernel("add_one", (2, 3), (n,)),
            Free((2,)),
            Alloc(4, (n,), (Expr.of(1),), torch.float32, CPU),
            Kernel("add_one", (3, 4), (n,)),
            Free((3,)),
            Alloc(5, (n,), (Expr.of(1),), torch.float32, CPU),
            Kernel("multiply", (1, 4, 5), (n,)),
        ],
        [5, (n * 2 + 1,), 0],
        lambda: [9, some(9)],
        symbols={"n": (0, -1)},
    ),
    "many_slots": Case(
        1,
        60,
        [step for i in range(1, 60) for step in (f32(i, 7), Kernel("add_one", (i - 1, i), (7,)))],
        [59, 30],
        lambda: [some(7)],
    ),
}
