"""Warnings of a captured frame: recorded during the capture, raised by generated code after the graph.

In: warnings of the program, of constant evaluation, and of torch in graph calls.
Out: effects, or a break if a warning's line is outside the captured frames.

Files in reading order:

- record.py: recording of warnings, and the line that each is about
- handlers.py: handlers for `warnings.warn`, `catch_warnings` and filters
- replay.py: checks before the graph, and the warnings after it
"""
