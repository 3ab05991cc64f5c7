"""Properties of operators: sizes, strides and dtypes of their results, their effects, and their checks of arguments.

In: an operator and its arguments (FakeTensors).  Out: layouts of results as in eager, or eager's exception.
Files in reading order:

- operator_facts.py: facts of an operator, and of a call; operator_table.py: the table of all facts

Layouts of results
- propagate.py: the entry point; a short path before FakeTensorMode
- symbolic_shape_rules.py, loss_shape_rules.py: rules for symbolic sizes
- static_shape_rules.py: the same rules for static sizes, with dtypes
- tensor_iterator.py: strides of pointwise results; memory_overlap.py: overlap of a tensor's elements
- kernel_probe.py: a run of the kernel, if no rule covers the operator
- result_strides.py: corrections of strides, by a run of the program's own call

Checks
- kernel_type_checks.py, argument_checks.py, dtype_ranges.py: errors that kernels raise and shape functions do not
- value_checks.py: checks of values as operators
- registered_kernels.py: kernels that a program registers

Single families
- composite_rules.py, functional_twins.py: replacements of composite and of writing operators
- ctc_loss.py, flex_attention.py: two operators as plain operators
- numpy_arrays.py, numpy_functions.py, numpy_promotion.py, numpy_random.py: NumPy calls in graphs
- process_groups.py: process groups and collectives
"""
