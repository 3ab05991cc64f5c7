"""Triton source → importable module, cached on disk as built libraries are.

In: the text of a module (`codegen.triton`).  Out: `BuiltLibrary` whose path is the module's file; `load` imports it and
gives its launchers.  Triton compiles a kernel at its first launch and keeps the binary in its own cache.  `Launch` starts
a kernel: the first time through Triton, then directly.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import linecache
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pycompiler.ir.plan import KERNEL_ERRORS
from pycompiler.runtime import disk_cache
from pycompiler.runtime.build import BuiltLibrary

# `debug`, which keeps our assertions about indices, would also assert that no integer sum or product wraps around.
OPTIONS = {"sanitize_overflow": False}


class Launch:
    """Starts one jit function on a grid: `launch(tensor, ...)`.

    Triton's launcher looks at every argument of every call; here the compiled kernel is kept per device and called with
    addresses, as long as all of them are aligned as Triton assumed (16 bytes).
    """

    def __init__(self, function: Any, grid: tuple[int, int], constants: dict[str, int]) -> None:
        self.function = function
        self.grid = grid
        self.constants = constants
        self.fixed = [v for k, v in constants.items() if k not in ("num_warps", "num_stages")]
        self.compiled: dict[int, Any] = {}

    def __call__(self, *tensors: torch.Tensor) -> None:
        if 0 in self.grid:
            return
        device = tensors[0].device.index
        addresses = [t.data_ptr() for t in tensors]
        aligned = not any(a & 15 for a in addresses)
        kernel = self.compiled.get(device) if aligned else None
        if kernel is None or torch.cuda.current_device() != device:
            self.first(device, tensors, aligned)
            return
        stream = torch._C._cuda_getCurrentRawStream(device)
        x, y = self.grid
        kernel.run(x, y, 1, stream, kernel.function, kernel.packed_metadata, None, None, None, *addresses, *self.fixed)

    def first(self, device: int | None, tensors: Sequence[torch.Tensor], aligned: bool) -> None:
        """Through Triton, which compiles."""
        options = OPTIONS if device is not None else {}  # Triton's interpreter knows none
        with torch.cuda.device(device) if device is not None else contextlib.nullcontext():
            kernel = self.function[self.grid](*tensors, **self.constants, **options)
        if aligned and device is not None and kernel is not None:
            self.compiled[device] = kernel


class HostKernel:
    """Starts a C++ kernel of a graph whose other kernels run on a device: `kernel(tensor, ...)`, all on the CPU."""

    def __init__(self, path: str, symbol: str) -> None:
        self.function = getattr(ctypes.CDLL(path), symbol)
        self.function.restype = ctypes.c_int64

    def __call__(self, *tensors: torch.Tensor) -> None:
        pointers = (ctypes.c_void_p * max(1, len(tensors)))(*[t.data_ptr() for t in tensors])
        code = self.function(pointers, (ctypes.c_int64 * 1)(), ctypes.c_int32(torch.get_num_threads()))
        if code:
            error, text = KERNEL_ERRORS[code]
            raise error(text)


def host_kernel(name: str, path: str, symbol: str) -> str:
    """The line of a module that defines a `HostKernel`."""
    return f"\n{name} = HostKernel({path!r}, {symbol!r})\n"


def build(text: str, symbols: Sequence[str]) -> BuiltLibrary:
    """The module of `text` in the cache, or in a temporary folder when the cache cannot be used."""

    def fill(folder: Path) -> None:
        for name in (disk_cache.LIBRARY, disk_cache.SOURCE):
            (folder / name).write_text(text)

    key = disk_cache.digest("triton", torch.__version__, text)
    try:
        entry, built = disk_cache.fetch(disk_cache.open_root(), key, fill)
    except OSError as error:
        entry, built = disk_cache.fetch(disk_cache.fall_back(error), key, fill)
    return BuiltLibrary(str(entry / disk_cache.LIBRARY), tuple(symbols), text, built)


@functools.lru_cache(maxsize=1024)
def load(path: str) -> Any:
    """The module of the file at `path`.  Its text is registered as a Python file's, for Triton reads kernels through it."""
    name = f"pycompiler_triton_{Path(path).parent.name}"
    if name in sys.modules:
        return sys.modules[name]
    text, shown = Path(path).read_text(), f"{path}.py"
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


def launcher(path: str, symbol: str) -> Callable[..., None]:
    """The function that launches kernel `symbol` on tensors."""
    return getattr(load(path), symbol)  # type: ignore[no-any-return]
