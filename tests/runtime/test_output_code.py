"""The printed plan runs by itself and gives the native plan's results."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pycompiler import _native, config
from pycompiler.ir.loops import Buffer
from pycompiler.ir.plan import Aten, Launch, Plan, SlotRef
from pycompiler.runtime.output_code import output_code
from pycompiler.symbolic.expr import Expr

sys.path.insert(0, str(Path(__file__).parent))
from plan_cases import CASES, CPU, MODULE, aten, build_kernels, f32, ref, some

RUNNER = """
import importlib.util, sys, torch
torch.set_num_threads(1)
work = torch.load(sys.argv[1])
results = {}
for name, (path, inputs) in work.items():
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(1)
    outputs = (*module.call(inputs), *inputs)
    results[name] = [(o.clone(), o.stride()) if isinstance(o, torch.Tensor) else o for o in outputs]
torch.save(results, sys.argv[2])
imported = [m for m in sys.modules if m.split(".")[0] == "pycompiler"]
assert not imported, imported
"""


WRITES = ("mutation", "stored in place")  # cases that change their input


def flat_bytes(t: torch.Tensor) -> bytes:
    return t.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if t.numel() else b""


def test_every_case_in_a_fresh_process(tmp_path: Path) -> None:
    library, work, want = build_kernels(tmp_path), {}, {}
    torch.set_num_threads(1)
    for name, case in CASES.items():
        torch.manual_seed(0)
        inputs, plan = case.inputs(), case.plan(name, library)
        path = tmp_path / f"graph_{name}.py"
        path.write_text(output_code(plan, inputs))
        work[name] = (str(path), [t.clone() for t in inputs] if name in WRITES else inputs)
        torch.manual_seed(1)
        want[name] = [*_native.Plan(plan)(*inputs), *inputs]
    torch.save(work, tmp_path / "work.pt")
    (tmp_path / "runner.py").write_text(RUNNER)
    done = subprocess.run(
        [sys.executable, tmp_path / "runner.py", tmp_path / "work.pt", tmp_path / "out.pt"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    got = torch.load(tmp_path / "out.pt")
    for name, outputs in want.items():
        assert len(got[name]) == len(outputs), name
        for have, o in zip(got[name], outputs, strict=True):
            if not isinstance(o, torch.Tensor):
                assert have == o, name
                continue
            copy, stride = have
            assert (copy.dtype, copy.shape, stride, flat_bytes(copy)) == (
                o.dtype,
                o.shape,
                o.stride(),
                flat_bytes(o),
            ), name


@pytest.mark.parametrize("name", ["dynamic", "dispatcher_embedding"])
def test_runs_as_a_script(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    (tmp_path / "graph.py").write_text(output_code(case.plan(name, build_kernels(tmp_path)), case.inputs()))
    done = subprocess.run([sys.executable, "graph.py"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("output 0: (")
    assert len(done.stdout.splitlines()) == len(case.outputs)


def test_text(tmp_path: Path) -> None:
    """The complete printed form of a small graph."""
    text = output_code(CASES["view_for_both"].plan("both", "/nowhere/k.so"), [some(10)])
    call = text[text.index("def call") : text.index("def random_inputs")]
    assert call.split("\n")[1:-3] == [
        "    arg0, = args",
        "    buf1 = torch.empty_strided((10,), (1,), dtype=torch.float32, device='cpu')",
        "    run(lib.add_one, [arg0, buf1], [10])",
        "    buf2 = torch.as_strided(buf1, (5,), (1,), buf1.storage_offset() + 5)",
        "    del buf1",
        "    buf3 = torch.ops.aten.relu.default(buf2)",
        "    buf4 = torch.empty_strided((5,), (1,), dtype=torch.float32, device='cpu')",
        "    run(lib.add_one, [buf2, buf4], [5])",
        "    return (buf3, buf4)",
    ]
    assert "int64_t add_one(void** ptrs, const int64_t* scalars, int32_t threads);" in text
    assert "LIBRARY = '/nowhere/k.so'" in text
    assert "        fill((10,), (1,), torch.float32, 'cpu')," in text


def load(text: str, tmp_path: Path) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "printed"}
    exec(compile(text, str(tmp_path / "printed.py"), "exec"), namespace)
    return namespace


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_constants_are_exact(dtype: torch.dtype, tmp_path: Path) -> None:
    values = (
        torch.tensor([0.1, float("inf"), float("nan"), -0.0]) if dtype.is_floating_point else torch.tensor([0, 1, 7, 0])
    )
    constant = values.to(dtype).repeat(2).view(2, 4).t()
    plan = Plan(0, 2, [Aten(aten.clone.default, ref(0), {}, (1,))], [1], {0: constant})
    (out,) = load(output_code(plan), tmp_path)["call"]([])
    assert out.stride() == constant.stride()
    assert flat_bytes(out) == flat_bytes(constant)


def test_large_constants_are_left_out(tmp_path: Path) -> None:
    plan = Plan(0, 2, [Aten(aten.relu.default, ref(0), {}, (1,))], [1], {0: torch.ones(1 << 20)})
    text = output_code(plan)
    assert "4194304 bytes, left out" in text
    assert len(text) < 4000
    assert load(text, tmp_path)["call"]([])[0].shape == (1 << 20,)


def test_awkward_arguments(tmp_path: Path) -> None:
    inf = float("inf")
    plan = Plan(
        1,
        3,
        [
            Aten(aten.clamp.default, (*ref(0), -inf, inf), {}, (1,)),
            Aten(aten.empty_like.default, ref(1), {"device": CPU, "memory_format": torch.preserve_format}, (2,)),
        ],
        [1],
    )
    x = some(3)
    assert torch.equal(load(output_code(plan), tmp_path)["call"]([x])[0], x)
    random = Plan(1, 2, [Aten(aten.bernoulli.default, ref(0), {"generator": torch.Generator()}, (1,))], [1])
    with pytest.raises(RuntimeError, match=r"no printed form: <torch\._C\.Generator"):
        load(output_code(random), tmp_path)["call"]([torch.ones(2)])


def test_missing_library_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "cache_dir", str(tmp_path / "cache"))
    plan = CASES["one_kernel"].plan("g", str(tmp_path / "gone.so"))
    x = some(4)
    assert torch.equal(load(output_code(plan), tmp_path)["call"]([x])[0], x + 1)


def test_kernels_of_a_module(tmp_path: Path) -> None:
    n = Expr.sym("n")
    launch = Launch(
        "add_one", CPU, ((n + 1) // 2, 1, 1), (SlotRef(0), SlotRef(1), n), ("*fp32",) * 2 + ("i64",), {"BLOCK": 2}
    )
    plan = Plan(1, 2, [f32(1, n), launch], [1], module=MODULE, symbols={"n": (0, 0)})
    x, text = some(5), output_code(plan)
    assert "    add_one[(((n + 1) // (2)), 1, 1)](arg0, buf1, n, BLOCK=2)\n" in text
    assert "1 kernels" in text
    assert torch.equal(load(text, tmp_path)["call"]([x])[0], x + 1)
    plan.steps[1] = replace(launch, device=torch.device("cuda:1"))
    assert "    with torch.cuda.device(1): add_one[(" in output_code(plan)


def test_inputs_that_are_not_tensors(tmp_path: Path) -> None:
    plan = Plan(2, 3, [Aten(aten.relu.default, ref(1), {}, (2,))], [2, 0])
    module = load(output_code(plan, [None, some(3)]), tmp_path)
    assert module["call"](module["random_inputs"]())[1] is None


def test_inputs_may_be_symbolic_buffers() -> None:
    n = Expr.sym("n")
    text = output_code(
        CASES["dynamic"].plan("g", "k.so"), [Buffer("a", torch.float32, (n, n + 1), (n + 1, Expr.of(1)), CPU)]
    )
    assert "fill((8, 9), (9, 1), torch.float32, 'cpu')" in text
    assert "    n = arg0.size(0)\n    m = arg0.size(1)" in text
