"""Autocast regions, counted per thread: after the outermost region, torch drops its cache of cast weights.

If the count stays too high, torch uses cached casts of weights whose values have changed.
Captured graphs do not change the count; the code after them does.
"""

from __future__ import annotations

import torch


def autocast_nesting() -> int:
    """The number of autocast regions around this thread's code."""
    try:
        torch.autocast_increment_nesting()
    finally:  # a signal handler may raise after the increment
        regions = torch.autocast_decrement_nesting()
    return regions


def step_nesting(by: int) -> None:
    """Enter (or leave, if negative) autocast regions.  Leaving the outermost one drops the cached casts, as in torch."""
    for _ in range(by):
        torch.autocast_increment_nesting()
    for _ in range(-by):
        torch.autocast_decrement_nesting()
    if by < 0:
        drop_casts()


def drop_casts() -> None:
    """Drop the cached casts of weights, unless an autocast region is active: later weights may have other values."""
    if autocast_nesting() == 0:
        torch.clear_autocast_cache()
