"""A torch-level graph → a `Joint`: one pass sees mutation, aliasing, gradients and the operators.

In: an ``fx.GraphModule`` whose placeholders are tensors (or numbers) and FakeTensors for them.
How: inputs become functional wrappers (C++ functionalisation, below autograd; `inputs.py`); the graph runs on them under
`Recorder` (`forward.py`); what it gave is told by how it lies in memory (`results.py`); then ``torch.autograd.grad`` runs
under the recorder too (`run.py`, and `paths.py` for what autograd's own graph says).
"""

from pycompiler.autograd.trace.run import trace_joint

__all__ = ["trace_joint"]
