"""`python -m tests.stress threads|calls|cycles|kernels|kills|processes|places|damage|interrupts`: prints JSON."""

from __future__ import annotations

import argparse
import json
import time

import torch

import pycompiler
from tests.stress import disk, interrupts, memory, threads

COMMANDS = {
    "threads": ("8 threads: call, compile, reset, freeze, train", lambda a: threads.run(a.seconds, a.backends)),
    "calls": ("--count calls (10^6): memory", lambda a: flat(memory.calls(a.count or 10**6), 1.0)),
    "cycles": ("--count compile/reset cycles (500): memory", lambda a: flat(memory.cycles(a.count or 500), 2048)),
    "kernels": ("--count compiles that each load a new library", lambda a: memory.new_kernels(a.count or 50)),
    "kills": ("kill -9 at --count random moments of a compile", lambda a: disk.kills(a.count or 200, a.seed)),
    "processes": ("--count processes at once on an empty cache", lambda a: disk.processes(a.count or 8, a.rounds)),
    "places": ("bad cache folders and compilers: rows whose name --only finds", lambda a: disk.places(a.only)),
    "damage": ("--count damages to cache entries", lambda a: disk.damage(a.count or 100, a.seed)),
    "interrupts": ("--count Ctrl-C during compiles", lambda a: interrupts.run(a.count or 200, seed=a.seed)),
}


def flat(report: dict, bytes_each: float) -> dict:
    memory.assert_flat(report, bytes_each)
    return report


def main() -> None:
    text = "\n".join(f"  {name:<11}{what}" for name, (what, _) in COMMANDS.items())
    parser = argparse.ArgumentParser("python -m tests.stress", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog=text)  # fmt: skip
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--backends", nargs="+", default=("eager", "aot_eager", "native"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pycompiler.config.progress = False
    begin = time.perf_counter()
    report = COMMANDS[arguments.command][1](arguments)
    print(json.dumps({arguments.command: report, "seconds": round(time.perf_counter() - begin, 1)}, indent=1))


if __name__ == "__main__":
    main()
