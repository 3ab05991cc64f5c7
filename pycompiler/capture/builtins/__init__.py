"""Handlers of builtin functions, one file a family; importing this package fills `calls.BUILTINS`."""

from pycompiler.capture.builtins import (
    autograd_function,
    backwards,
    begun,
    branches,
    collections,
    containers,
    copying,
    data,
    devices,
    drawn,
    exceptions,
    frozen,
    generators,
    gradients,
    iteration,
    jagged,
    nested,
    numbers,
    optimizers,
    overrides,
    patterns,
    python,
    ranges,
    scalars,
    schedulers,
    torch_api,
    transforms,
    variables,
    warned,
)

FAMILIES = (
    autograd_function, backwards, begun, branches, collections, containers, copying, data, devices, drawn, exceptions, frozen,
    generators, gradients, iteration, jagged, nested, numbers, optimizers, overrides, patterns, python, ranges, scalars,
    schedulers, torch_api, transforms, variables, warned,
)  # fmt: skip
