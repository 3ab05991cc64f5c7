"""Schedule -> C++ source."""

from pycompiler.codegen.cpp.generate import CppSource, Unsupported, generate

__all__ = ["CppSource", "Unsupported", "generate"]
