"""Triton kernels of a plan -> binaries for its GPUs, cached on disk like built libraries.

In: `Plan.module`, the text of a Python module (`codegen.triton`), and the launches of the plan.  Out: `Plan.binaries`.
The cache is read without an import of Triton, which takes a second.

A binary assumes that addresses are multiples of 16 bytes, as tensors' are; `unaligned` builds one without that
assumption. `start` launches a kernel through Triton itself: for the oracle and, under Triton's interpreter, without a
GPU.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import linecache
import re
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pycompiler.ir.plan import Binary, Launch, Plan
from pycompiler.runtime import disk_cache

# `debug`, which keeps the assertions about indices, would also assert that integer sums and products do not wrap
# around. No contraction: an operator rounds its result wherever it is computed.
OPTIONS = {"sanitize_overflow": False, "enable_fp_fusion": False}
ALIGNED = [["tt.divisibility", 16]]
_PARAMETERS = re.compile(
    r"\.entry\s+(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)(?:.*?\.reqntid\s+(?P<threads>\d+))?", re.DOTALL
)


def capability_of(device: torch.device) -> int:
    """The compute capability of a GPU: 90 for an H100."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@functools.cache
def triton_version() -> str:
    """The version of Triton, without an import if its package metadata is available."""
    from importlib import metadata

    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        import triton

        return str(triton.__version__)


def build(plan: Plan, capability: Callable[[torch.device], int] = capability_of) -> None:
    """Fill `plan.binaries`."""
    wanted = {s.kernel: (s, capability(s.device)) for s in plan.steps if isinstance(s, Launch)}
    if not wanted:
        return
    said = [f"{s.kernel} {s.types} {s.constants} {s.checks} {c}" for s, c in wanted.values()]
    key = disk_cache.digest("triton", "unpacked", triton_version(), str(OPTIONS), plan.module, *said)

    def fill(folder: Path) -> None:
        made = {name: binary_of(compiled(plan.module, step, c)) for name, (step, c) in wanted.items()}
        (folder / disk_cache.LIBRARY).write_bytes(packed(made))
        (folder / disk_cache.SOURCE).write_text(plan.module)

    try:
        entry, _ = disk_cache.fetch(disk_cache.open_root(), key, fill)
    except OSError as error:
        entry, _ = disk_cache.fetch(disk_cache.fall_back(error), key, fill)
    plan.binaries = unpacked((entry / disk_cache.LIBRARY).read_bytes())


def unaligned(plan: Plan, kernel: str) -> Binary:
    """The kernel's binary for addresses of any alignment."""
    step = next(s for s in plan.steps if isinstance(s, Launch) and s.kernel == kernel)
    return binary_of(compiled(plan.module, step, capability_of(step.device), aligned=False))


def compiled(text: str, step: Launch, capability: int, aligned: bool = True) -> Any:
    """Triton's compilation result for a kernel and a GPU, which need not be present."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(load(text), step.kernel)
    constants = {k: v for k, v in step.constants.items() if k in function.arg_names}
    given = {k: v for k, v in step.constants.items() if k not in constants}
    pointers = [i for i, t in enumerate(step.types) if t.startswith("*")]
    unit = ASTSource(
        fn=function,
        signature=dict(zip(function.arg_names, (*step.types, *["constexpr"] * len(constants)), strict=True)),
        constexprs=constants,
        attrs={(i,): ALIGNED for i in pointers} if aligned else {},
    )
    chosen = {**OPTIONS, **given, "debug": step.checks}
    with _HOOK:
        return triton.compile(unit, target=GPUTarget("cuda", capability, 32), options=chosen)


class _SumHook:
    """A context in which `unpacked_sums` is applied to Triton's output; one thread at a time, since Triton has one place for
    a hook."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.before: Any = None

    def __enter__(self) -> None:
        from triton import knobs

        self.lock.acquire()
        self.before = knobs.runtime.add_stages_inspection_hook
        knobs.runtime.add_stages_inspection_hook = self.stages

    def __exit__(self, *_: object) -> None:
        from triton import knobs

        knobs.runtime.add_stages_inspection_hook = self.before
        self.lock.release()

    def stages(self, backend: Any = None, stages: Any = None, *rest: Any) -> Any:
        """Called for a part of Triton's cache key and hash, or with the stages of a compilation."""
        if stages is None:
            name = "pycompiler: unpacked"
            return (name, name) if self.before is None else tuple(f"{name}, {n}" for n in self.before())
        if self.before is not None:
            self.before(backend, stages, *rest)
        make = stages["ptx"]
        stages["ptx"] = lambda source, metadata: unpacked_sums(make(source, metadata))
        return None


_HOOK = _SumHook()
_PACKED_SUM = re.compile(r"add\.[su]16x2\s+(%\w+), (%\w+), (%\w+);")


def unpacked_sums(ptx: str) -> str:
    """`ptx` without instructions that add two pairs of 16-bit integers.

    NVIDIA's assembler (12.8 and 13.0, for sm_90) turns a sum with a constant into a sum with zero if only one half is
    read.  Small quotients and remainders in an index, which LLVM computes in pairs, were wrong.
    """
    each = (
        "{{ .reg .b16 a0, a1, b0, b1; mov.b32 {{a0, a1}}, {1}; mov.b32 {{b0, b1}}, {2}; "
        "add.s16 a0, a0, b0; add.s16 a1, a1, b1; mov.b32 {0}, {{a0, a1}}; }}"
    )
    return _PACKED_SUM.sub(lambda found: each.format(*found.groups()), ptx)


def binary_of(made: Any) -> Binary:
    """The launch data of a kernel, read from the assembler's text: Triton's versions differ in the arguments they add."""
    data, head = made.metadata, _PARAMETERS.search(made.asm["ptx"])
    if (
        head is None
        or head["name"] != data.name
        or data.num_ctas != 1
        or data.global_scratch_size
        or data.profile_scratch_size
    ):
        raise RuntimeError(f"the kernel {data.name} needs an unsupported kind of launch: {data}")
    parameters = tuple(re.findall(r"\.param\s+\.([a-z]\d+)", head["parameters"]))
    threads = int(head["threads"] or data.num_warps * 32)
    return Binary(made.asm["cubin"], data.name, parameters, threads, data.shared)


def packed(binaries: Mapping[str, Binary]) -> bytes:
    """A line of JSON, then the binaries one after the other."""
    table = [(n, b.entry, b.parameters, b.threads, b.shared, len(b.image)) for n, b in binaries.items()]
    return json.dumps(table).encode() + b"\n" + b"".join(b.image for b in binaries.values())


def unpacked(data: bytes) -> dict[str, Binary]:
    table, _, images = data.partition(b"\n")
    binaries, at = {}, 0
    for name, entry, parameters, threads, shared, size in json.loads(table):
        binaries[name] = Binary(images[at : at + size], entry, tuple(parameters), threads, shared)
        at += size
    return binaries


def start(text: str, step: Launch, grid: Sequence[int], arguments: Sequence[Any]) -> None:
    """Launch a kernel through Triton, which compiles it at the first call."""
    device, options = step.device, {**OPTIONS, **step.constants}
    if device.type == "cpu":  # Triton's interpreter accepts no options
        options = {k: v for k, v in step.constants.items() if k not in OPTIONS}
    with contextlib.nullcontext() if device.type == "cpu" else torch.cuda.device(device):
        getattr(load(text), step.kernel)[tuple(grid)](*arguments, **options)


@functools.lru_cache(maxsize=1024)
def load(text: str) -> Any:
    """The module of `text`, registered like a Python file's module, since Triton reads the source of kernels through it."""
    name = f"pycompiler_triton_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    shown = f"<{name}>.py"
    linecache.cache[shown] = (len(text), None, text.splitlines(keepends=True), shown)
    module = types.ModuleType(name)
    module.__file__ = shown
    sys.modules[name] = module
    try:
        exec(compile(text, shown, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
