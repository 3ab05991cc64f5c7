"""One Triton kernel -> its binary, by Triton's compiler.

In: a `Job`.  Out: the fields of `ir.plan.Binary`.  No GPU need be present.

Example: `launch_data(compiled(job))`.

This module imports neither torch nor other modules of this package: worker processes import it (`triton_worker.py`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import linecache
import os
import re
import sys
import threading
import types
from dataclasses import dataclass
from typing import Any

# `debug`, which keeps the assertions about indices, would also assert that integer sums and products do not wrap
# around. No contraction: an operator rounds its result wherever it is computed.
OPTIONS = {"sanitize_overflow": False, "enable_fp_fusion": False}
ALIGNED = [["tt.divisibility", 16]]
MENDS = "mended 2"  # a part of cache keys: another number with each change of `mended`
PASS_FAILED = "PassManager::run failed"  # the message of Triton's compiler if one of its passes fails
_PARAMETERS = re.compile(
    r"\.entry\s+(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)(?:.*?\.reqntid\s+(?P<threads>\d+))?", re.DOTALL
)
# (image, entry, parameters, threads, bytes of shared memory)
LaunchData = tuple[bytes, str, tuple[str, ...], int, int]


@dataclass(frozen=True)
class Job:
    """A kernel to compile: the function `kernel` in the Python module `text`, with the fields of its `ir.plan.Launch`.

    `capability`: the compute capability of the GPU, 90 for an H100.  `aligned`: addresses are multiples of 16 bytes.
    """

    text: str
    kernel: str
    types: tuple[str, ...]
    constants: dict[str, int]
    checks: bool
    capability: int
    aligned: bool = True


@functools.cache
def triton_version() -> str:
    """The version of Triton, without an import if its package metadata is available."""
    from importlib import metadata

    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        import triton

        return str(triton.__version__)


def is_customised() -> bool:
    """Whether Triton in this process differs from Triton in another one: it interprets, or has a hook of the program's."""
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return True
    known = sys.modules.get("triton.knobs")
    hook = None if known is None else known.runtime.add_stages_inspection_hook
    return (_HOOK.before if getattr(hook, "__self__", None) is _HOOK else hook) is not None


def compiled(job: Job) -> Any:
    """Triton's compilation result."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(load(job.text), job.kernel)
    constants = {k: v for k, v in job.constants.items() if k in function.arg_names}
    given = {k: v for k, v in job.constants.items() if k not in constants}
    pointers = [i for i, t in enumerate(job.types) if t.startswith("*")]
    unit = ASTSource(
        fn=function,
        signature=dict(zip(function.arg_names, (*job.types, *["constexpr"] * len(constants)), strict=True)),
        constexprs=constants,
        attrs={(i,): ALIGNED for i in pointers} if job.aligned else {},
    )
    chosen = {**OPTIONS, **given, "debug": job.checks}
    target = GPUTarget("cuda", job.capability, 32)
    with _HOOK:
        try:
            return triton.compile(unit, target=target, options=chosen)
        except RuntimeError as error:
            if PASS_FAILED not in str(error):
                raise
            # Bug of Triton 3.6: for some kernels a pass over layouts of registers uses values before their definitions.
            # With other warps the layouts are others.  (Triton prints the pass's errors.)
            warps = chosen["num_warps"]
            for other in (2 * warps, max(1, warps // 2)):
                with contextlib.suppress(RuntimeError):
                    return triton.compile(unit, target=target, options={**chosen, "num_warps": other})
            raise


class _PatchHook:
    """A context in which `mended` is applied to Triton's output; one thread at a time, since Triton has one place for
    a hook."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.before: Any = None

    def __enter__(self) -> None:
        from triton import knobs

        self.lock.acquire()
        try:
            self.before = knobs.runtime.add_stages_inspection_hook
            knobs.runtime.add_stages_inspection_hook = self.stages
        except BaseException:
            self.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self.restore()
        finally:
            self.lock.release()

    def restore(self) -> None:
        from triton import knobs

        before, self.before = self.before, None
        knobs.runtime.add_stages_inspection_hook = before

    def after_fork(self) -> None:
        """In a forked process: the thread that was inside of the context is not there."""
        if self.lock.locked():
            self.lock = threading.Lock()
            known = sys.modules.get("triton.knobs")
            hook = None if known is None else known.runtime.add_stages_inspection_hook
            if getattr(hook, "__self__", None) is self:
                self.restore()

    def stages(self, backend: Any = None, stages: Any = None, *rest: Any) -> Any:
        """Called for a part of Triton's cache key and hash, or with the stages of a compilation."""
        if stages is None:
            name = f"pycompiler: {MENDS}"
            return (name, name) if self.before is None else tuple(f"{name}, {n}" for n in self.before())
        if self.before is not None:
            self.before(backend, stages, *rest)
        make = stages["ptx"]
        stages["ptx"] = lambda source, metadata: mended(make(source, metadata))
        return None


_HOOK = _PatchHook()
os.register_at_fork(after_in_child=_HOOK.after_fork)
_CONSTANT = re.compile(r"0f([0-9A-Fa-f]{8})")
_SELECTION = re.compile(r"selp\.f32(?P<result>\s+%\w+), (?P<values>[^;]*\b0f80000000\b[^;]*);")
_PACKED_SUM = re.compile(r"add\.[su]16x2\s+(%\w+), (%\w+), (%\w+);")


def mended(ptx: str) -> str:
    """`ptx` without the instructions that NVIDIA's assembler is known to compile wrongly."""
    return selected_bits(unpacked_sums(ptx))


def selected_bits(ptx: str) -> str:
    """`ptx` with selections of the constant -0.0 as selections of 32 bits.

    NVIDIA's assembler (12.8, for sm_90) turns a selection of 1.0 or -0.0 into an instruction that gives 1.0 or +0.0.
    """

    def bits(found: re.Match[str]) -> str:
        values = _CONSTANT.sub(lambda c: str(int.from_bytes(bytes.fromhex(c[1]), "big", signed=True)), found["values"])
        return f"selp.b32{found['result']}, {values};"

    return _SELECTION.sub(bits, ptx)


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


def launch_data(made: Any) -> LaunchData:
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
    return made.asm["cubin"], data.name, parameters, threads, data.shared


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
