"""Symbolic execution of Python frames: CPython's evaluation loop over values.

In: a code object, its globals and the values of its locals.
Out:
`Captured`: the graph of the frame and its recipe, or the record of a graph break.

Files in reading order:

- frame.py: the capture of one root frame, with its retries, up to its return or first break
- context.py: `Capture`, the state of one capture, passed to handlers and values as `cx`
- evaluation.py: `Frame`, one frame under symbolic execution
- calls.py: calls of functions, builtins and classes
- inlining_rules.py: which functions are graph nodes, constants, inlined or breaks
- torch_function.py: dispatch to `__torch_function__` of the program
- tracers.py: inner graphs of functions that the program passes on
- dispatch_hooks.py: guards for `__torch_dispatch__` and constructors of tensor subclasses
- recursion_limit.py: the recursion limit during captures
"""
