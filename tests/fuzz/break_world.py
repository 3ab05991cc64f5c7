"""Callees of the programs of the break fuzzer: context managers, functions and generators, with and without graph
breaks.

Every event is noted in the `log` that each callee receives.  `NAMESPACE` holds the globals of the programs.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

import pycompiler


class Custom(ValueError):
    """An exception of the program's own, with state."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Manager:
    """A context manager that notes events; its arguments make it break the graph, raise, or swallow an exception."""

    def __init__(self, log: list[Any], name: str, swallow: bool = False, breaks: str = "", fails: str = "") -> None:
        self.log, self.name, self.swallow, self.breaks, self.fails = log, name, swallow, breaks, fails

    def __enter__(self) -> int:
        self.log.append(("enter", self.name))
        if self.breaks == "enter":
            pycompiler.graph_break()
        if self.fails == "enter":
            raise Custom("enter " + self.name)
        return len(self.log)

    def __exit__(self, cls: Any, value: Any, tb: Any) -> bool:
        if self.breaks == "exit":
            pycompiler.graph_break()
        self.log.append(("exit", self.name, None if cls is None else cls.__name__))
        if self.fails == "exit":
            raise KeyError("exit " + self.name)
        return self.swallow


class Box:
    """An object with attributes and a method, usable in patterns."""

    __match_args__ = ("size", "label")

    def __init__(self, size: int, label: str) -> None:
        self.size, self.label = size, label

    def grow(self, by: int) -> int:
        self.size += by
        return self.size

    def grow_and_break(self, by: int) -> int:
        self.size += by
        pycompiler.graph_break()
        return self.size


@contextlib.contextmanager
def plain(log: list[Any], name: str) -> Iterator[int]:
    log.append(("in", name))
    yield len(log)
    log.append(("out", name))


@contextlib.contextmanager
def final(log: list[Any], name: str) -> Iterator[int]:
    log.append(("in", name))
    try:
        yield len(log)
    finally:
        log.append(("out", name))


@contextlib.contextmanager
def final_break(log: list[Any], name: str) -> Iterator[int]:
    pycompiler.graph_break()
    try:
        yield len(log)
    finally:
        pycompiler.graph_break()
        log.append(("out", name))


@contextlib.contextmanager
def swallowing(log: list[Any], name: str) -> Iterator[int]:
    try:
        yield 1
    except (ValueError, KeyError) as error:
        log.append(("caught", name, type(error).__name__))


@contextlib.contextmanager
def changing(log: list[Any], name: str) -> Iterator[int]:
    try:
        yield 2
    except ValueError as error:
        raise KeyError("changed " + name) from error


def brk(value: Any) -> Any:
    pycompiler.graph_break()
    return value


def note(log: list[Any], value: Any) -> Any:
    log.append(value)
    return value


def boom(value: int) -> int:
    if value > 1:
        raise Custom("boom", value)
    return value


def boom_after_break(value: int) -> int:
    pycompiler.graph_break()
    if value > 1:
        raise Custom("boom after break", value)
    return value


def scaled(x: torch.Tensor, *factors: int, shift: int = 0) -> torch.Tensor:
    for factor in factors:
        x = x * factor
    return x + shift


def scaled_break(x: torch.Tensor, *factors: int, shift: int = 0, **more: int) -> torch.Tensor:
    for factor in factors:
        x = x * factor
        pycompiler.graph_break()
    return x + shift + len(more)


def counting(log: list[Any], n: int) -> Iterator[int]:
    for i in range(n):
        log.append(("yield", i))
        yield i


def counting_final(log: list[Any], n: int) -> Iterator[int]:
    try:
        for i in range(n):
            yield i
    finally:
        log.append("closed")


def counting_break(log: list[Any], n: int) -> Iterator[int]:
    for i in range(n):
        pycompiler.graph_break()
        yield i


def delegating(log: list[Any], n: int) -> Iterator[int]:
    yield from counting(log, n)
    yield from counting_final(log, 2)


def handled_name() -> str:
    kind = sys.exc_info()[0]
    return "none" if kind is None else kind.__name__


def adder(start: int) -> Callable[[int], int]:
    total = start

    def add(by: int) -> int:
        nonlocal total
        total += by
        return total

    return add


NAMESPACE: dict[str, Any] = {
    "torch": torch, "pycompiler": pycompiler, "contextlib": contextlib, "gc": gc, "sys": sys, "Custom": Custom,
    "Manager": Manager, "Box": Box, "plain": plain, "final": final, "final_break": final_break,
    "swallowing": swallowing, "changing": changing, "brk": brk, "note": note, "boom": boom,
    "boom_after_break": boom_after_break, "scaled": scaled, "scaled_break": scaled_break, "counting": counting,
    "counting_final": counting_final, "counting_break": counting_break, "delegating": delegating,
    "handled_name": handled_name, "adder": adder,
}  # fmt: skip
