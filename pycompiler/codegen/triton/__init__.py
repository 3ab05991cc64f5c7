"""Schedule -> Triton source."""

from pycompiler.codegen.triton.generate import TritonSource, generate
from pycompiler.codegen.triton.types import Unsupported

__all__ = ["TritonSource", "Unsupported", "generate"]
