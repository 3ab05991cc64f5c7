"""Optional steps of the compiler, switched off one by one so that a bisector can find the step that breaks a program.

In: `step_enabled(level, what)`, called wherever the compiler can leave a step out.  Out: whether to do the step.
Normally every step is done.  While a bisector runs, only the first steps of a level with a limit are done, and each
step is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TextIO

# Level -> behaviour without the step.  The levels are in the order in which data passes through them.
LEVELS: dict[str, str] = {
    "frame": "the function runs eagerly",
    "guards": "an entry serves one call",
    "background": "the call waits for its compile",
    "backend": "graphs run as they were captured, not by the program's own backend",
    "captured graph": "the graph runs as it was captured",
    "decomposition": "the operator is not decomposed",
    "graph": "the ATen graph runs operator by operator",
    "operator": "the operator runs as ATen's kernel",
    "fusion": "the two kernels are not fused",
    "memory": "the buffer has memory of its own",
    "region": "the graph is compiled separately",
    "cache": "the kernels are built again",
}

# Further settings of a bisector.  Child processes of the program inherit them through their environment.
SETTINGS: dict[str, tuple[str, ...]] = {
    # the backend that replaces the native one; "eager" also replaces the program's own backend
    "backend": ("eager", "aot_eager"),
    "verify": ("each",),  # `verify_correctness` compares every call, not only the first call of a graph
}

active = False  # False: `step_enabled` returns True without counting or logging
limits: dict[str, int] = {}
settings: dict[str, str] = {}
_counts: dict[str, int] = {}
_answers: dict[tuple[str, Hashable], bool] = {}
_log: TextIO | None = None


def step_enabled(level: str, what: Callable[[], str], key: Hashable = None) -> bool:
    """Whether to do the step.

    what: names the step, with the program's line; called only for the log.
    key: steps of one level with equal keys share one answer.
    """
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
        _log.flush()  # flush now: the program may crash
    return answer


def set_limits(text: str | None, log: str | None) -> None:
    """Reset the counters and set the limits of this process.

    text: comma-separated `level<number` or `setting=value`.  log: a file that gets one line for each step.
    """
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
