"""Ahead-of-time autograd: torch-level graph → functional ATen graphs and the wrappers that run them; see
`compile_joint`."""

from pycompiler.autograd.compile import aot_eager, compile_joint
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.autograd.wrappers import compile_wrappers, has_wrappers

__all__ = ["AutogradUnsupported", "aot_eager", "compile_joint", "compile_wrappers", "has_wrappers"]
