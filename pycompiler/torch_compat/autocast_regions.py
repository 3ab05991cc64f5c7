"""Regions of autocast, counted per thread: behind the last one torch drops the casts of weights that it has kept.

A count that stays too high has torch use these casts when the weights have other values.  Captured graphs do not count; what
runs behind them does.
"""

from __future__ import annotations

import torch


def autocast_nesting() -> int:
    """How many autocast regions this thread is in."""
    try:
        torch.autocast_increment_nesting()
    finally:  # a signal's handler may raise behind it
        regions = torch.autocast_decrement_nesting()
    return regions


def step_nesting(by: int) -> None:
    """Enter, or leave, as many autocast regions; as torch's own last exit, that of the last one drops the casts that are kept."""
    for _ in range(by):
        torch.autocast_increment_nesting()
    for _ in range(-by):
        torch.autocast_decrement_nesting()
    if by < 0:
        drop_casts()


def drop_casts() -> None:
    """The casts of weights that autocast keeps, where no region of the caller's goes on: they would be used when the weights have
    other values."""
    if autocast_nesting() == 0:
        torch.clear_autocast_cache()
