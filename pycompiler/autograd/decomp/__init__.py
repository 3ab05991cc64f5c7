"""Decompositions of our own, one file per family; importing this package fills `registry.RULES`."""

from pycompiler.autograd.decomp import activations, creation, losses, norms, random, reductions, shapes

__all__ = ["activations", "creation", "losses", "norms", "random", "reductions", "shapes"]
