"""Names that programs written for torch.compile import from a module with this name."""

from pycompiler.debug.profiler import CompileProfiler
from pycompiler.ir.phases import compile_times

__all__ = ["CompileProfiler", "compile_times"]
