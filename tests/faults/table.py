"""The table of faults: fault, program in which it shows, the one command, and parts of the command's output."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults import ours, programs

BISECT = "python -m pycompiler bisect program.py"
REPORT = "python -m pycompiler report --json page.json program.py"
RUN = "python program.py"


@dataclass(frozen=True)
class Row:
    name: str  # of a function in `ours` that inserts it; faults of programs have none
    program: str  # of `programs`
    symptom: str
    says: tuple[str, ...]  # each occurs in the command's output, or in the file `page.json`
    command: str = BISECT
    doc: str = ""
    peer: str = ""  # the commands for torch's tools; see `theirs`
    no_peer: str = ""  # the reason why there are none

    @property
    def text(self) -> str:
        return programs.__dict__[self.program]

    @property
    def lines(self) -> list[str]:
        """Lines of the program, which the report of a fault should have; the longest first."""
        return sorted(
            (line.strip() for line in self.text.splitlines() if line.startswith("    ")), key=len, reverse=True
        )

    @property
    def what(self) -> str:
        return self.doc or getattr(ours, self.name).__doc__


# torch's tools: the documented commands for such a symptom.
AOT = "TORCHDYNAMO_REPRO_AFTER=aot TORCHDYNAMO_REPRO_LEVEL={} python program.py; python minifier_launcher.py"
VALUES, ERRORS = AOT.format(4), AOT.format(2)
DYNAMO = "TORCHDYNAMO_REPRO_AFTER=dynamo TORCHDYNAMO_REPRO_LEVEL=4 python program.py; python minifier_launcher.py"
SEARCH = "python -m torch._inductor.compiler_bisector run python program.py"


def logs(names: str) -> str:
    return f"TORCH_LOGS={names} python program.py"


WRONG, ERROR, SLOW = "wrong values", "an exception", "slow"

TABLE = (
    Row("wrong_lowering", "OPERATORS", WRONG, ("operator: 4 of ", "aten.sin.default", ": z = z + x.sin()"), peer=VALUES),
    Row("wrong_index_rule", "OPERATORS", WRONG, ("operator: 3 of ", "aten.flip.default", ": z = y.flip(0)"), peer=VALUES),
    Row("wrong_neighbour", "OPERATORS", WRONG, ("aten.roll.default", "silu(z.roll(1)) - 1"), peer=DYNAMO),
    Row("precision_lost", "OPERATORS", WRONG, ("operator: 2 of ", "aten.exp.default", ": y = (x * 2).exp()"),
        no_peer="its code generator drops a conversion there and back: the fault does not show"),
    Row("missing_mutation", "WRITES", WRONG, ("copy_.default", ": total.add_(x.sum())"), peer=DYNAMO),
    Row("wrong_decomposition", "OPERATORS", WRONG,
        ("decomposition: 1 of 1: aten.silu.default", "program.py:8 in program)"), peer=DYNAMO),
    Row("wrong_gradient_rule", "GRADIENT", WRONG, ("aten.sigmoid_backward.default (for the gradient of ", "program.py:5 in program)"), peer=DYNAMO),
    Row("bad_partition", "GRADIENT", WRONG, ("partition: the program is right with config.partition = 'save_all'",), peer=DYNAMO),
    Row("wrong_alias", "VIEW", "an AssertionError", ("layer: aot_eager", "captured graph: 1 of 1", "program.py:5 in program"), peer=DYNAMO),
    Row("wrong_random_stream", "DROPS", WRONG, ("decomposition: 1 of 2: aten.bernoulli.p", "program.py:5 in program)"),
        no_peer="its random numbers are its own, not those of eager: a wrong stream is no fault that it could see"),
    Row("wrong_fusion", "ROWS", WRONG, ("fusion: 1 of ", "\n    add: aten.add", ": y = x + 1"),
        no_peer="its lowering inlines what is fused here, before anything is scheduled"),
    Row("wrong_order_of_stores", "STORES", WRONG, ("aten.add.Tensor", ": state.copy_(state.flip(0) + x)"),
        no_peer="no single place of it decides this"),
    Row("memory_reused_too_early", "MEMORY", WRONG, ("memory: ", " in the memory of [", "has memory of its own"), peer=VALUES),
    Row("cpp_error", "OPERATORS", ERROR, ("BuildFailed", "operator: 4 of ", ": z = z + x.sin()"), peer=ERRORS),
    Row("crash_in_a_kernel", "OPERATORS", "the process ends", ("it crashes with SIGILL", "operator: 4 of ", ": z = z + x.sin()"), peer=VALUES),
    Row("hang_in_a_kernel", "ONE", "it hangs", ("it hangs", "operator: 1 of 1: sin", ": return x.sin())"),
        command="python -m pycompiler bisect --limit 20 program.py", peer=VALUES),
    Row("wrong_cache_entry", "TWO", WRONG, ("cache: 2 of 2: ", "right when the kernels are built again"), peer=VALUES),
    Row("wrong_region_sharing", "ALIKE", WRONG, ("region: 1 of 1: ", "program.py:4 in <lambda>", "right when the graph is compiled separately"),
        no_peer="torch compiles each frame for itself"),
    Row("deadlock_of_a_worker", "WORKER", "it hangs", ("it hangs", "background: 1 of 1: program (program.py:3)"),
        command="python -m pycompiler bisect --limit 20 program.py", no_peer="torch has no compile in the background that a call need not wait for"),
    Row("wrong_dtype_of_a_fake", "DTYPES", "an AssertionError", ("layer: eager", "frame: 1 of 1: program (program.py:3)"), peer=SEARCH),
    Row("wrong_stride", "STRIDES", WRONG, ("layer: native", "graph: 1 of 1: inference graph of program (program.py:3)"), peer=SEARCH),
    Row("missed_effect", "EFFECT", "an AssertionError", ("layer: eager", "frame: 1 of 1: program (program.py:11)"), peer=SEARCH),
    Row("wrong_resume", "BREAKS", ERROR, ("layer: eager", "frame: 1 of 2: program (program.py:3)"), peer=SEARCH),
    Row("wrong_effect_order", "ORDER", "an AssertionError", ("layer: eager", "frame: 1 of 1: program (program.py:7)"),
        no_peer="it breaks the graph at each call of a logger: no order of effects is decided"),
    Row("wrong_exception", "ERROR", "an AssertionError", ("layer: native", "aten.index.Tensor", ": return table[at] + 1"),
        no_peer="without any fault it raises a RuntimeError where eager raises an IndexError"),
    Row("weak_guard", "NUMBERS", "an AssertionError",
        ("guards: the program is right when every call is compiled again", "guards of program (program.py:3)"), peer=SEARCH),
    Row("stale_global", "GLOBALS", "an AssertionError",
        ("guards: the program is right when every call is compiled again", "guards of program (program.py:12)"), peer=SEARCH),
    Row("wrong_symbolic_guard", "SIZES", "an AssertionError",
        ("guards: the program is right when every call is compiled again", "guards of program (program.py:3)"), peer=SEARCH),
    Row("strict_guard", "CALLS", SLOW, ("L['x'] is the Tensor seen at compile time", "another Tensor", "def program(x):"),
        command=REPORT, peer=logs("recompiles")),
    Row("slow_pass", "ONE", SLOW, ("s of compiles are the phase scheduling's", "compile.prof names the functions"), command=REPORT, peer="""python -c "import runpy, torch; runpy.run_path('program.py'); print(torch._dynamo.utils.compile_times())" """.strip()),
    Row("damaged_artefact", "ARTEFACT", ERROR, ("program.artefact", "damaged"), command=RUN, peer=RUN,
        doc="a file that was saved is damaged"),
    Row("out_of_memory", "MEMORY_OUT", ERROR, ("graph [0/0/inference] program#0.inference, step 0 (alloc slot 1, for ", "program.py:6 in program", "you tried to allocate 1125899906842624 bytes"), command=RUN, peer=RUN,
        doc="a graph needs more memory than there is"),
    Row("branch_on_data", "BRANCH", SLOW, ("program.py:5", "if x.sum() > 0:"), command="PYCOMPILER_LOGS=graph_breaks python program.py",
        peer=logs("graph_breaks"), doc="a branch depends on data"),
    Row("recompile_storm", "STORM", SLOW, ("L['mode'] == 'm'", "Way out: keep the text constant between calls"),
        command="PYCOMPILER_LOGS=recompiles python program.py", peer=logs("recompiles"), doc="an argument is another one each time"),
    Row("slow_guard", "TABLE", SLOW, ("list(L['table'])",), command=REPORT, peer=logs("guards"), doc="a dict of 500 keys is compared at each call"),
)  # fmt: skip
