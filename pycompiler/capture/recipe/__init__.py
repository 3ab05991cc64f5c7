"""Recipes: bytecode and templates that rebuild the results of a captured frame and replay its side effects.

In: the state at the end of a capture.  Out: a `Recipe`, plain data from which an entry is assembled.

Read in this order:

- `recipe.py`: `Recipe`, and the holes in its code.
- `codegen.py`: `Head`, instructions that load values.
- `object_builders.py`: instructions that create new objects.
- `effect_replay.py`: instructions that repeat the writes to existing objects.
- `runtime_helpers.py`: the functions that generated code calls.
- `graph_failures.py`: whether a failed graph had lasting effects.
"""
