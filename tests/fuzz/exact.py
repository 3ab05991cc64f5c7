"""The fuzzer of exact programs: `python -m tests.fuzz.exact --count 50000 --seed 1 --jobs 2` (from the repository's root).

A program applies IEEE operators (`+ - * / sqrt`, comparisons, selections, roundings, casts, extremes, indices) to floats of
one dtype, special values among them, and lets exact consumers look at the results.  Compiled values must have eager's bits;
gradients must be NaN and infinite where eager's are.  `--twins` compares each compiled program with itself instead: under
other settings (`SETTINGS`) every bit must be the same, of elementary functions, sums and norms too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 120  # programs of one process; loaded libraries stay
PATIENCE = 240.0  # seconds without a line

DTYPES = {"float32": 6, "bfloat16": 3, "float16": 2, "float64": 2}  # with their weights
SPECIAL = "0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -1.5, inf, -inf, nan, {tiny}, -{tiny}, {denormal}, {largest}, 41.0, 1e4, 3.0"

# Arguments of remainders: of denormal divisors and of large quotients eager's vectors give NaN, its scalars do not; CUDA's
# library takes denormal numbers for zeros.
SMALL = "({a} * 8).round().clamp(-72, 72) / 8, {b}.abs().clamp(0.3, 9)"
# Templates over {a}, {b}, {c}: floats; {m}: a truth; {i}: an integer.  The weight follows.  Of two zeros eager's vectors
# and scalars choose different ones: `+ 0.0` makes them one.
FLOATS: tuple[tuple[str, int], ...] = (
    ("-{a}", 1), ("{a}.abs()", 2), ("root({a}.abs())", 2), ("root({a})", 1), ("{a}.square()", 2),
    ("{a}.reciprocal()", 1), ("{a}.floor()", 1), ("{a}.ceil()", 1), ("{a}.round()", 1), ("{a}.trunc()", 1),
    ("{a}.sign()", 1), ("{a}.relu()", 2), ("{a} ** 3", 1), ("{a} ** 2", 1), ("{a}.clamp(-1, 2)", 1),
    ("{a}.clamp_min(0.3)", 1), ("{a} * 0.1", 2), ("{a} / 3", 2), ("{a} + 1e-3", 1), ("1 - {a}", 1), ("1 / {a}", 1),
    ("{a} * 3 - {b} * 0.7", 1), ("{a} + {b}", 5), ("{a} - {b}", 5), ("{a} * {b}", 6), ("{a} / {b}", 4),
    ("{a} * {b} + {c}", 4), ("{a} * {b} - {c} * {a}", 3), ("{c} - {a} * {b}", 2), ("torch.maximum({a} + 0.0, {b} + 0.0)", 1),
    ("torch.minimum({a} + 0.0, {b} + 0.0)", 1), ("torch.fmax({a} + 0.0, {b} + 0.0)", 1), ("torch.copysign({a}, {b}.nan_to_num())", 1),
    (f"torch.remainder({SMALL})", 1), (f"torch.fmod({SMALL})", 1), (f"torch.div({SMALL}, rounding_mode='floor')", 1),
    ("torch.div({a}, {b}, rounding_mode='trunc')", 1), ("torch.add({a}.float(), {a}.float() * 3, alpha=0.3)", 1),
    ("torch.sub({a}.float(), {a}.float() * 3, alpha=0.7)", 1), ("torch.rsub({a}.float(), {a}.float() * 7, alpha=0.3)", 1), ("{a} ** -2", 1), ("torch.lerp({a}, {b}, 0.8)", 1), ("torch.lerp({a}, {b}, {c}.clamp(0.1, 0.9))", 1),
    ("torch.nn.functional.huber_loss({a}, {b}.expand_as({a}).to({a}.dtype), reduction='none')", 1), ("torch.nn.functional.hardswish({a}.nan_to_num())", 1),
    ("torch.nn.functional.smooth_l1_loss({a}, {b}.expand_as({a}).to({a}.dtype), reduction='none')", 1), ("torch.nn.functional.softsign({a})", 1),
    ("{a} + torch.linspace(0.1, 3.7, {a}.shape[-1], dtype={a}.dtype)", 1), ("{a} + torch.arange({a}.shape[-1]) * 0.3", 1), ("torch.addcmul({c}, {a}, {b})", 1),
    ("torch.addcmul({c}, {a}, {b}, value=0.5)", 1), ("torch.addcdiv({c}, {a}, {b}, value=0.5)", 1),
    ("torch.lerp({a}, {b}, 0.3)", 1), ("torch.where({m}, {a}, {b})", 3), ("{a}.masked_fill({m}, 0.25)", 1),
    ("{a}.masked_fill({m}, float('nan'))", 1), ("{m}.to({a}.dtype)", 1), ("{i}.to({a}.dtype)", 1), ("{a} * {m}", 1),
    ("({a} + 0.0).amax(-1, keepdim=True)", 2), ("({a} + 0.0).amin(0, keepdim=True)", 1), ("({a} + 0.0).amax(0)", 1), ("({a} + 0.0).amax()", 1),
    ("{a} / ({a} + 0.0).amax(-1, keepdim=True)", 2), ("{a} - ({a} + 0.0).amax(-1, keepdim=True)", 1), ("({a} + 0.0).max(-1).values", 1),
    ("{a}.sort(-1).values", 1), ("{a}.t()", 1), ("{a}.flip(0)", 1), ("{a}[..., ::2]", 1), ("{a}[:1]", 1),
    ("{a}.unsqueeze(-1)", 1), ("torch.cat([{a}, {a}], -1)", 1), ("{a}.gather(-1, {i}.long().clamp(0, {a}.shape[-1] - 1))", 1),
    ("{a}.gather(-1, {m}.long())", 1), ("{a}.index_select(0, {i}.flatten().long().clamp(0, {a}.shape[0] - 1))", 1),
    ("{a}.float()", 1), ("{a}.to(torch.bfloat16)", 1), ("{a}.float().to({a}.dtype)", 1), ("torch.nn.functional.relu6({a}.nan_to_num())", 1),
    ("torch.nn.functional.leaky_relu({a}, 0.01)", 1), ("torch.nn.functional.hardtanh({a}.nan_to_num())", 1), ("{a}.nan_to_num()", 1),
    ("torch.nn.functional.threshold({a}, 0.1, 20.0)", 1), ("{a}.cummax(-1).values", 1), ("{a}.tril()", 1),
)  # fmt: skip
TRUTHS: tuple[tuple[str, int], ...] = (
    ("{a} == {b}", 3), ("{a} > {b}", 2), ("{a} <= {b}", 2), ("{a} != {b}", 1), ("{a} > 0", 1), ("{a} == 1", 1),
    ("{a} == {a}.amax(-1, keepdim=True)", 2), ("{a}.isnan()", 1), ("{a}.isinf()", 1), ("{a}.nan_to_num().signbit()", 1),
    ("~{m}", 1), ("{m} & ({a} < {b})", 1), ("{i} > 1", 1), ("{a}.bool()", 1), ("{m}.any(-1, keepdim=True)", 1),
    ("{a} * {b} == {c}", 1), ("{a} / {b} == 1", 1),
)  # fmt: skip
INTEGERS: tuple[tuple[str, int], ...] = (
    ("{a}.int()", 3), ("{a}.long()", 2), ("({a} / 41).int()", 1), ("({a} * 8).floor().long()", 1), ("{m}.sum(-1)", 1),
    ("{m}.cumsum(-1)", 1), ("{a}.argmax(-1)", 2), ("{a}.argmin(0)", 1), ("{a}.argsort(-1, stable=True)", 1),
    ("{a}.max(-1).indices", 1), ("{i} * 3 + 1", 1), ("{i} // 2", 1), ("{i} % 5", 1), ("{a}.floor().int() & 7", 1),
    ("({a} * 4).round().long() << 1", 1),
)  # fmt: skip
# Added for twins, whose bits are compared with their own.
INEXACT: tuple[tuple[str, int], ...] = (
    ("{a}.exp()", 3), ("{a}.abs().log()", 2), ("{a}.sin()", 3), ("{a}.cos()", 2), ("{a}.tanh()", 2), ("{a}.sigmoid()", 2),
    ("torch.nn.functional.gelu({a})", 3), ("torch.nn.functional.silu({a})", 2), ("{a}.erf()", 1), ("{a}.expm1()", 1),
    ("{a}.abs().log1p()", 1), ("{a}.abs() ** 0.3", 1), ("{a}.softmax(-1)", 4), ("{a}.log_softmax(-1)", 2),
    ("{a}.sum(-1, keepdim=True)", 3), ("{a}.sum(0)", 3), ("{a}.mean(-1, keepdim=True)", 2), ("{a}.sum()", 2),
    ("{a}.float().var(-1, keepdim=True)", 2), ("torch.nn.functional.layer_norm({a}, {a}.shape[-1:])", 3),
    ("torch.nn.functional.normalize({a}, dim=-1)", 2), ("{a}.logsumexp(-1)", 1), ("torch.nn.functional.softplus({a})", 1),
    ("{a}.abs().rsqrt()", 1), ("{a}.prod(-1)", 1),
)  # fmt: skip


class Root(torch.autograd.Function):
    """The square root as IEEE has it; ATen's on the CPU is MKL's, whose last bit is another one at times."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        with np.errstate(invalid="ignore"):
            y = torch.from_numpy(np.sqrt(np.atleast_1d(wide.detach().numpy()))).reshape(x.shape).to(x.dtype)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g / (2 * ctx.saved_tensors[0])


Make = Callable[[], list[torch.Tensor]]
Function = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Program:
    """`inputs`: lines that make the arguments; `body`: statements of `fn`; `results`: the names that it returns."""

    seed: int
    dtype: str
    inputs: tuple[str, ...]
    body: tuple[str, ...]
    results: tuple[str, ...]
    training: bool

    def text(self) -> str:
        given = ", ".join(line.split(" = ")[0] for line in self.inputs)
        return "\n".join([
            "def make():", *(f"    {line}" for line in self.inputs), f"    return [{given}]", "", "",
            f"def fn({given}):", *(f"    {line}" for line in self.body), f"    return ({', '.join(self.results)},)", ""])  # fmt: skip

    def load(self, device: str, eager: bool = False) -> tuple[Make, Function]:
        root = Root.apply if eager and device == "cpu" else torch.sqrt
        space: dict[str, Any] = {"torch": torch, "data": lambda *a, **k: data(*a, **k).to(device), "root": root}
        exec(compile(self.text(), f"<exact {self.seed}>", "exec"), space)
        return space["make"], space["fn"]


def data(seed: int, *shape: int, dtype: torch.dtype, special: bool = False) -> torch.Tensor:
    """Normal numbers, halves and whole numbers, with special ones strewn in."""
    g = torch.Generator().manual_seed(seed)
    t = torch.randn(shape, generator=g, dtype=torch.float64)
    t = torch.where(torch.rand(shape, generator=g) < 0.25, (t * 4).round() / 2, t).to(dtype)
    if special and t.numel():
        info = torch.finfo(dtype)
        text = SPECIAL.format(tiny=info.tiny, denormal=info.smallest_normal / 8, largest=info.max)
        values = torch.tensor(eval(f"[{text}]", {"inf": float("inf"), "nan": float("nan")}), dtype=torch.float64).to(
            dtype
        )
        chosen = torch.randint(0, len(values), shape, generator=g)
        t = torch.where(torch.rand(shape, generator=g) < 0.2, values[chosen], t)
    return t


def generate(seed: int, twins: bool = False) -> Program:
    """The program of a seed: each statement ran in eager when it was drawn."""
    r = random.Random(seed)
    dtype = r.choices(list(DTYPES), list(DTYPES.values()))[0]
    dtype = (
        "float32" if twins and dtype == "float64" else dtype
    )  # the order of a sum of doubles is seen in its last bit
    training = r.random() < 0.4
    columns = r.choice((1, 2, 3, 7, 8, 16, 17, 31, 33, 64, 70, r.randint(1, 70), r.randint(1, 70), 300))
    rows = r.choice((1, 1, 2, 3, 5, 16, r.randint(1, 40)))
    shapes = [(rows, columns), (rows, columns), (rows, 1), (1, columns), (columns,)]
    inputs = []
    for k in range(r.randint(2, 4)):
        shape = shapes[0] if k == 0 else r.choice(shapes)
        special = ", special=True" if r.random() < 0.3 else ""
        grad = ".requires_grad_()" if training and (k == 0 or r.random() < 0.6) else ""
        inputs.append(
            f"x{k} = data({r.randrange(10**6)}, {', '.join(map(str, shape))}, dtype=torch.{dtype}{special}){grad}"
        )
    equal = r.random() < 0.2
    if equal:
        inputs.append("x9 = x0.detach().clone()" + (".requires_grad_()" if training else ""))
    draft = Program(seed, dtype, tuple(inputs), (), ("x0",), training)
    make, _ = draft.load("cpu")
    live: dict[str, torch.Tensor] = dict(zip([line.split(" = ")[0] for line in inputs], make(), strict=True))
    body: list[str] = []
    table = [*FLOATS, *FLOATS, *TRUTHS, *INTEGERS, *(INEXACT * 2 if twins else ())]
    templates, weights = [t for t, _ in table], [w for _, w in table]
    for _ in range(60):
        if len(body) >= 4 + seed % 9:
            break
        text = fill(r.choices(templates, weights)[0], live, r)
        name = f"t{len(body)}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = eval(text, {"torch": torch, "root": torch.sqrt}, live) if text else None
        except (RuntimeError, IndexError, TypeError, NotImplementedError):
            continue
        if value is None or value.numel() > 40_000 or value.numel() == 0:
            continue
        live[name] = value
        body.append(f"{name} = {text}")
    used = set(re.findall(r"\bt\d+\b", " ".join(line.split(" = ", 1)[1] for line in body)))
    made = [line.split(" = ")[0] for line in body]
    results = [n for n in made if n not in used or r.random() < 0.25] or ["x0 * 1"]
    needed = set(re.findall(r"\bx\d+\b", " ".join([*body, *results])))
    needed |= {"x0"} if "x9" in needed else set()
    kept = [line for line in inputs if line.split(" = ")[0] in needed | {"x0"}]
    return Program(seed, dtype, tuple(kept), tuple(body), tuple(results), training)


def fill(template: str, live: dict[str, torch.Tensor], r: random.Random) -> str:
    """The template with names of fitting values, recent ones more often; empty where none fits."""
    kinds = {"a": "f", "b": "f", "c": "f", "m": "b", "i": "i"}
    found: dict[str, str] = {}
    for slot in dict.fromkeys(re.findall(r"\{(\w)\}", template)):
        fitting = [n for n, t in live.items() if kind(t) == kinds[slot]]
        if not fitting:
            return ""
        found[slot] = r.choices(fitting, [1 + k for k in range(len(fitting))])[0]
    return template.format(**found)


def kind(t: torch.Tensor) -> str:
    return "f" if t.is_floating_point() else "b" if t.dtype == torch.bool else "i"


# ---- one program -----------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    values: list[torch.Tensor]
    gradients: list[torch.Tensor | None]


def run(fn: Callable[..., tuple[torch.Tensor, ...]], make: Callable[[], list[torch.Tensor]], training: bool) -> Seen:
    args = make()
    values = fn(*args)
    if training:
        wanted = [v for v in values if v.requires_grad]
        if wanted:
            torch.autograd.backward(wanted, [torch.ones_like(v) for v in wanted])
    return Seen([v.detach().cpu() for v in values], [None if a.grad is None else a.grad.cpu() for a in args])


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def unequal(a: torch.Tensor, b: torch.Tensor) -> str:
    """Where two tensors have other bits; any NaN equals any other."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype} {tuple(a.shape)} for {b.dtype} {tuple(b.shape)}"
    bits = BITS[a.element_size()]
    differ = a.contiguous().view(bits) != b.contiguous().view(bits)
    if a.is_floating_point():
        differ &= ~(a.isnan() & b.isnan())
    if not differ.any():
        return ""
    at = tuple(differ.nonzero()[0].tolist())
    return f"{int(differ.sum())} of {differ.numel()}, at {list(at)} {a[at].item()!r} for {b[at].item()!r}"


def pattern(a: torch.Tensor | None, b: torch.Tensor | None) -> str:
    """Where a gradient is NaN, infinite, or missing, and the other is not."""
    if a is None or b is None:
        return "" if a is b else f"{'none' if a is None else 'one'} where there is {'none' if b is None else 'one'}"
    differ = (a.isnan() != b.isnan()) | (a.isinf() != b.isinf())
    if not differ.any():
        return ""
    at = tuple(differ.nonzero()[0].tolist())
    return f"{int(differ.sum())} of {differ.numel()}, at {list(at)} {a[at].item()!r} for {b[at].item()!r}"


def difference(got: Seen, want: Seen, results: tuple[str, ...], bits_of_gradients: bool = False) -> str:
    for name, a, b in zip(results, got.values, want.values, strict=True):
        if found := unequal(a, b):
            return f"{name}: {found}"
    for k, (a, b) in enumerate(zip(got.gradients, want.gradients, strict=True)):
        found = unequal(a, b) if bits_of_gradients and a is not None and b is not None else pattern(a, b)
        if found:
            return f"gradient {k}: {found}"
    return ""


def compare(program: Program, device: str = "cpu") -> str:
    """How a compiled program differs from eager; empty where it does not."""
    import pycompiler

    make, fn = program.load(device)
    compiled = pycompiler.compile(fn)
    try:
        want = run(program.load(device, eager=True)[1], make, program.training)
    except (RuntimeError, NotImplementedError):
        return raises(lambda: run(compiled, make, program.training))
    for _ in range(2):
        if found := difference(run(compiled, make, program.training), want, program.results):
            return found
    counted = pycompiler.counters(compiled)
    if counted["compiles"] < 1 or counted["hits"] < 1:
        return f"nothing was compiled and run: {counted}"
    return ""


def raises(call: Callable[[], Any]) -> str:
    try:
        call()
    except (RuntimeError, NotImplementedError):
        return ""
    return "no error where eager raises one"


@contextlib.contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _knobs(**knobs: Any) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    def patched() -> contextlib.AbstractContextManager[Any]:
        from pycompiler import config

        return config.patch(**knobs)

    return patched


# name -> (a context in which the program is compiled and run, options of `compile`)
SETTINGS: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[Any]], dict[str, Any]]] = {
    "no fusion": (_knobs(max_fusion_size=1), {}),
    "two threads": (lambda: threads(2), {}),
    "dynamic": (contextlib.nullcontext, {"dynamic": True}),
    "nothing computed again": (_knobs(partition="save_all"), {}),
    "all computed again": (_knobs(activation_memory_budget=0.0), {}),
    "background": (contextlib.nullcontext, {"background": True}),
}


def twins(program: Program, device: str = "cpu") -> str:
    """Under which setting a compiled program differs from itself; empty where under none."""
    import pycompiler

    make, fn = program.load(device)
    try:
        want = run(pycompiler.compile(fn), make, program.training)
    except (RuntimeError, NotImplementedError):
        return raises(lambda: run(fn, make, program.training))
    for name, (context, options) in SETTINGS.items():
        with context():
            compiled = pycompiler.compile(fn, **options)
            got = run(compiled, make, program.training)
            if options.get("background"):
                settle(compiled)
                got = run(compiled, make, program.training)
        exact = name != "background"
        if exact and (found := difference(got, want, program.results, bits_of_gradients=True)):
            return f"{name}: {found}"
    return ""


def settle(compiled: Any) -> None:
    """Waits until a background compile has put its entry in place."""
    for _ in range(600):
        import pycompiler

        if not pycompiler.counters(compiled).get("pending", 0):
            return
        time.sleep(0.01)


# ---- many programs ---------------------------------------------------------------------------------------------------


def worker(first: int, last: int, device: str, as_twins: bool) -> None:
    """Judges the programs of seeds and says so in lines of JSON."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import logging

    import pycompiler

    pycompiler.config.raise_internal_errors = True
    pycompiler.config.progress = False
    logging.getLogger("pycompiler").setLevel(logging.ERROR)
    for seed in range(first, last):
        print(json.dumps({"start": seed}), flush=True)
        try:
            program = generate(seed, as_twins)
            found = (twins if as_twins else compare)(program, device)
        except Exception as e:
            found = f"error: {type(e).__name__}: {str(e)[:300]}"
        print(json.dumps({"seed": seed, "found": found}), flush=True)


def campaign(seed: int, count: int, jobs: int, device: str, as_twins: bool, seconds: float) -> int:
    """Prints each difference; the exit status: 1 when there is one."""
    begin, lock, done, found = time.monotonic(), threading.Lock(), Counter[str](), dict[int, str]()
    ranges = iter([range(k, min(k + CHUNK, seed + count)) for k in range(seed, seed + count, CHUNK)])

    def note(at: int, text: str) -> None:
        with lock:
            done["differs" if text else "same"] += 1
            if text:
                found[at] = text
                print(f"seed {at}: {text}", flush=True)

    def walk() -> None:
        while time.monotonic() - begin < seconds:
            with lock:
                chosen = next(ranges, None)
            if chosen is None:
                return
            at = chosen.start
            while at < chosen.stop:
                at = judged(at, chosen.stop, device, as_twins, note)

    workers = [threading.Thread(target=walk) for _ in range(jobs)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    total = sum(done.values())
    print(f"{total} programs in {time.monotonic() - begin:.0f} s: {done['differs']} differ", flush=True)
    for k in list(found)[:12]:
        print(f"\n#### seed {k}: {found[k]}\n{generate(k, as_twins).text()}")
    return int(bool(found) or not total)


def judged(first: int, last: int, device: str, as_twins: bool, note: Callable[[int, str], None]) -> int:
    """Has a process judge seeds; the seed from which on another one goes on."""
    with tempfile.TemporaryDirectory(prefix="pycompiler-exact-") as cache:
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYCOMPILER_CACHE_DIR": cache}
        code = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); from fuzz.exact import main; main()"
        command = [sys.executable, "-c", code, "--worker", str(first), str(last), "--device", device]
        child = subprocess.Popen([*command, *(["--twins"] if as_twins else [])], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True, env=environment)  # fmt: skip
        said = [time.monotonic()]

        def watch() -> None:
            while child.poll() is None:
                time.sleep(1)
                if time.monotonic() - said[0] > PATIENCE:
                    child.kill()

        threading.Thread(target=watch, daemon=True).start()
        at, open_seed = first, None
        assert child.stdout is not None
        for line in child.stdout:
            said[0] = time.monotonic()
            told = json.loads(line)
            if "start" in told:
                open_seed = told["start"]
            else:
                note(told["seed"], told["found"])
                at, open_seed = told["seed"] + 1, None
        status = child.wait()
        if status or open_seed is not None:
            at = first if open_seed is None else open_seed
            note(at, f"the process ended with {status}")
            at += 1
        return at


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.exact", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs")
    parser.add_argument("--seed", type=int, default=1, help="of the first one; each program has the next")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--twins", action="store_true", help="compare compiled programs with themselves under other settings"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="no new processes after this time")
    parser.add_argument("--show", type=int, help="print the program of a seed, and judge it")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        worker(*chosen.worker, chosen.device, chosen.twins)
        return 0
    if chosen.show is not None:
        torch.set_num_threads(1)
        program = generate(chosen.show, chosen.twins)
        print(program.text())
        print((twins if chosen.twins else compare)(program, chosen.device) or "same")
        return 0
    if any((ROOT / "pycompiler").glob("_native*.so")):  # else the installed one
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return campaign(chosen.seed, chosen.count, chosen.jobs, chosen.device, chosen.twins, chosen.seconds)


if __name__ == "__main__":
    sys.exit(main())
