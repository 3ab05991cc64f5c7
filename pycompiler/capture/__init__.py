"""Capture: a Python frame → a graph and a recipe, by symbolic execution of the frame's bytecode.

In: a code object, its globals, and the values in its locals array.
Out: `Captured`, plain data: the torch-level graph and a `Recipe`.  A recipe has the guards and either a return template or
generated code, which replays side effects and, after a graph break, calls a resume function.
The graph is not compiled here, and capture calls no other stage.

Subpackages in reading order:

- breaks.py: the kinds of graph breaks, and the exceptions that carry control inside a capture
- bytecode: code objects as lists of instructions, resume functions, generated frame code
- values: the values that the interpreter computes with, and Python's data model on them
- interpreter: frames, calls and the state of one capture; `interpreter/frame.py` is the entry point
- opcodes: a handler for each opcode
- semantics: operators, formatting, polyfills and other rules of the language
- recording: the graph under construction, its inputs, and size symbols
- effects: side effects on objects that existed before the frame
- library: handlers for functions of Python's standard library and of torch
- arrays: NumPy arrays as tensors of the graph
- warnings: warnings of the frame and of torch
- assumptions: alias guards, recompute checks, and other assumptions beyond single guards
- recipe: the state at the end of a capture → guards, template and generated code
"""
