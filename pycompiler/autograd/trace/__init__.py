"""A torch-level graph → a `Joint`: one pass records in-place writes, aliases, gradients and operators.

In: an ``fx.GraphModule`` whose placeholders are tensors (or numbers), and FakeTensors for them.  Out: a `Joint`.

Files in reading order:

- run.py: the trace, and ``torch.autograd.grad`` under the recorder
- inputs.py: inputs as functional wrappers (C++ functionalisation, below autograd)
- forward.py: the run of the captured graph under `Recorder`
- writes.py: writes of a call, and writes that eager refuses
- results.py: results, described by their memory; split_views.py: results that are pieces of one tensor
- gradient_paths.py: paths of gradients in eager's autograd graph
- gradient_memory.py: memory of gradients
- eager_formulas.py: gradients whose formulas read data in eager
"""

from pycompiler.autograd.trace.run import trace_joint

__all__ = ["trace_joint"]
