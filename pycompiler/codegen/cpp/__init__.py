"""C++ code generation: schedule -> C++ source.

In: `ir.kernel.Schedule`.  Out: `CppSource`, a function per kernel group.  Read in this order:

- `generate.py`: the translation unit and its functions.
- `nest.py`: a nest as loops.
- `body.py`: a loop body as statements.
- `folds.py`, `accumulate.py`: reductions, inside a thread and across threads.
- `ops.py`, `types.py`, `index.py`, `lines.py`: operations, types, index expressions, indentation.
- `joined_parts.py`, `load_store_blocks.py`, `angles.py`: special loop forms.
"""

from pycompiler.codegen.cpp.generate import CppSource, Unsupported, generate

__all__ = ["CppSource", "Unsupported", "generate"]
