"""Recording: inputs become placeholders, and calls on tensors become nodes of the captured graph.

In: real objects with their sources, and calls on values.  Out: an fx graph with fake tensors, and the guards on its inputs.

Read in this order:

- `wrap.py`: a real object and its source -> a value.
- `graph.py`: `GraphBuilder`, the graph under construction.
- `fake_calls.py`: the run of a call on fake tensors, and its effects.
- `call_arguments.py`, `conversion_checks.py`: arguments of nodes, and the checks of symbolic ones.
- `nodes.py`: queries on nodes.
- `input_symbols.py`: size symbols of inputs.
- `unbacked_bindings.py`: unbacked symbols, bound when a call runs.
- `wrapper_inputs.py`, `jagged_inputs.py`: tensor subclasses and jagged tensors as inputs.
- `constant_tensors.py`, `scalar_reads.py`: numbers in tensors that are known or followed.
- `data_errors.py`: errors that depend on data.
- `inference_mode.py`, `collectives.py`: inference mode and functional collectives.
"""
