"""Code that generated kernels use.

In: generated C++ and Triton source.  Out: the headers that it includes and the functions that it calls.  In reading order:

    cpp/pyc_prelude.h: types, conversions, integer helpers; includes the next two headers
    cpp/pyc_math.h: elementary functions
    cpp/pyc_reduce.h: reductions
    cpp/pyc_small.h: the prelude without the two headers, for small graphs
    triton/helpers.py: functions for Triton kernels
"""
