"""Handlers of builtin functions, one file a family; importing this package fills `calls.BUILTINS`."""

from pycompiler.capture.builtins import (
    collections,
    containers,
    exceptions,
    iteration,
    nested,
    numbers,
    overrides,
    python,
    torch_api,
    transforms,
)

FAMILIES = (collections, containers, exceptions, iteration, nested, numbers, overrides, python, torch_api, transforms)
