"""Ahead-of-time autograd: a torch-level graph becomes functional ATen graphs and the wrappers that run them.

In: a captured graph, example inputs, and compilers of ATen graphs.
Out: a callable with eager's gradients, in-place writes and aliases; see `compile_joint`.

Files in reading order:

- compile.py: the entry point, which composes all other files
- trace/: one traced run of the captured graph, which gives a `Joint`
- recorder.py: the dispatch mode that records operators; views.py: views in a functional graph
- decompositions.py, decomp/: decompositions of ATen operators
- joint.py: the joint graph of forward and backward, and data about it
- layout.py: the layout of images and of products in memory, one choice for a whole joint graph
- late_waits.py: waits for collectives at their first readers
- partition.py, recompute.py, maxflow.py: the cut into forward and backward graph
- missing_tangents.py: backward graphs for some of the tangents
- stages.py, staged_backward.py: a backward in stages, one for each bucket of `DistributedDataParallel`
- runtime.py: the runtime wrappers; saved_tensors.py: saved tensors of several outputs
- replay.py, replay_graph.py: a second run of the captured graph, for double backward; linearity.py: a check of hooks
  for it
- control_flow.py: branches and loops
- checkpoint_policies.py: selective checkpoints
- kernel_substitutes.py, attention_arguments.py: replaced operators and arguments
- subclasses/: graphs of tensor subclasses
- unsupported.py: the error for graphs that must run eagerly
"""

from pycompiler.autograd.compile import aot_eager, compile_joint
from pycompiler.autograd.layout import lay_out
from pycompiler.autograd.subclasses.compile import compile_wrappers, has_wrappers
from pycompiler.autograd.unsupported import AutogradUnsupported

__all__ = ["AutogradUnsupported", "aot_eager", "compile_joint", "compile_wrappers", "has_wrappers", "lay_out"]
