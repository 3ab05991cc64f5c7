"""Schedule -> Triton source."""

from pycompiler.codegen.triton.generate import KernelInfo, TritonSource, generate
from pycompiler.ir.kernel import Unsupported

__all__ = ["KernelInfo", "TritonSource", "Unsupported", "generate"]
