"""Choices of the compiler that can be undone one by one, so that halving finds the one that makes a program wrong.

In: at each place where the compiler does something that could be left out, `taken(level, what)`.  Out: whether it is done.
All are, but while a bisector runs: of a level with a limit only the first ones are done, and each is written to a log.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TextIO

# In the order in which data passes through them; what happens instead.
LEVELS: dict[str, str] = {
    "frame": "the function runs eagerly",
    "guards": "an entry serves one call",
    "background": "the call waits for its compile",
    "backend": "graphs run as they were captured, not by the program's own backend",
    "captured graph": "the graph runs as it was captured",
    "decomposition": "the operator stays whole",
    "graph": "the ATen graph runs operator by operator",
    "operator": "the operator is ATen's kernel",
    "fusion": "the two kernels stay apart",
    "memory": "the buffer has memory of its own",
    "region": "the graph is compiled for itself",
    "cache": "the kernels are built anew",
}

# What else a bisector sets; processes that the program starts have it from their environment.
SETTINGS: dict[str, tuple[str, ...]] = {
    "backend": ("eager", "aot_eager"),  # which one answers for the native one; eager does for the program's own, then
    "verify": ("each",),  # calls that `verify_correctness` compares, not only the first one of a graph
}

active = False  # whether anything is asked at all
limits: dict[str, int] = {}
settings: dict[str, str] = {}
_counts: dict[str, int] = {}
_answers: dict[tuple[str, Hashable], bool] = {}
_log: TextIO | None = None


def taken(level: str, what: Callable[[], str], key: Hashable = None) -> bool:
    """Whether to do it.  `what` names it, with the program's line; choices of equal `key` are one."""
    if not active:
        return True
    if key is not None and (known := _answers.get((level, key))) is not None:
        return known
    number = _counts[level] = _counts.get(level, 0) + 1
    answer = number <= limits.get(level, number)
    if key is not None:
        _answers[level, key] = answer
    if _log is not None:
        _log.write(f"{level}\t{number}\t{what()}\n".replace("\n", " ").rstrip() + "\n")
        _log.flush()  # the program may crash
    return answer


def set_limits(text: str | None, log: str | None) -> None:
    """text: `level<number` or `setting=value` and so on, separated by commas; log: a file that gets a line for each choice."""
    global active, _log
    limits.clear()
    settings.clear()
    _counts.clear()
    _answers.clear()
    if _log is not None:
        _log.close()
        _log = None
    for part in (text or "").split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if equals:
            if value not in SETTINGS.get(name, ()):
                raise ValueError(f"expected one of {SETTINGS}; got {part!r}")
            settings[name] = value
        elif part.strip():
            level, _, number = part.partition("<")
            if level.strip() not in LEVELS or not number.strip().isdecimal():
                raise ValueError(f"expected `level<number`, levels {', '.join(LEVELS)}; got {part!r}")
            limits[level.strip()] = int(number)
    if log:
        _log = open(log, "a")  # noqa: SIM115 (it stays open)
    active = bool(limits) or _log is not None
