"""Data that the stages of the compiler exchange: guards, sources, graphs' operators, the loop IR, schedules and plans.

In: nothing: the stages create this data.  Out: plain, printable records, each with a verifier or a reference interpreter.
No module here imports a stage.  Files in reading order:

Sources and guards
- source.py: sources, the chains from a root to a value of the frame
- computed_sources.py: functions over several sources
- iterator_state.py: state of started iterators, read without a step
- guards.py: guards, and their evaluator in Python
- weak_guards.py: guards that hold classes weakly
- guard_entries.py, guard_filters.py: guards as `guard_filter_fn` receives them, and named filters
- guard_differences.py: the aspect in which a call differs from a guard

Captured graphs
- higher_order.py: operators that run nested graphs
- function_marks.py, nested_regions.py: marks that a program sets on its functions
- generated_source.py, graph_copies.py, graph_text.py: sources, copies and tables of graphs

Loops, kernels, plans
- loops.py: the loop IR; printer.py prints it, verify.py checks it, interpret.py runs it
- target.py: properties of the machine
- kernel.py: schedules, groups, nests and stages; interpret_schedule.py runs a schedule
- plan.py: the steps of a call; autograd_node.py: what a call with gradients saves, and what its backward reads

The compile itself
- compile_names.py: the name of a compile
- phases.py: phases, artefacts and their observers
- choices.py: optional steps, for the bisector
- control_flow_exceptions.py: exceptions that leave a stage
- lazy_value.py: values computed at their first use
- persistent_names.py: names of objects that another process can resolve
"""
