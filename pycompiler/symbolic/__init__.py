"""Symbolic sizes and numbers: expressions, a compile's assumptions about them, and the guards that check them.

In: the sizes and numbers of a captured call (hints).  Out: symbolic numbers that torch's operators accept, relations that a
later call must satisfy, and graph nodes that compute the numbers.  Files in reading order:

- expr.py: integer expressions in canonical form
- symbol.py: the record of one symbol: all that is known of it
- symbols.py: the symbols of one compile and its assumptions
- symbolic_node.py: the node under torch's SymInt, SymFloat and SymBool
- integer_functions.py: quotients, bits and rounding over symbols
- unbacked_symbols.py: numbers known only at run time
- size_checks.py, data_checks.py: the data of guards on sizes, and on numbers in tensors
- dynamic_marks.py: the user's marks on tensors
- size_nodes.py, number_nodes.py: symbolic numbers as graph nodes
- hints.py: likely sizes, for heuristics
- concretize.py: arguments with hints in place of symbols
- float_bits.py: floats stored as integers
"""
