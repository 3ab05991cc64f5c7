"""Schedule -> Triton source."""

from pycompiler.codegen.triton.generate import generate
from pycompiler.ir.kernel import Unsupported

__all__ = ["Unsupported", "generate"]
