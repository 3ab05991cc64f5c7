"""Ahead-of-time autograd for graphs of tensor subclasses: plain graphs of the inner tensors, rebuilt subclasses around them.

In: a captured graph with tensor subclasses, and a compiler of plain graphs.  Out: a callable of the graph's inputs.
Files in reading order:

- compile.py: the entry point and the trace
- inner_tensors.py: inputs and results as inner tensors
- tape.py: recording of operators below the classes
- subgraphs.py: parts of the recorded graph
- calls.py: the code that runs on each call
"""
