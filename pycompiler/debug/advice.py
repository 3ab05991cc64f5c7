"""One sentence of advice for the cause of graph breaks, recompiles or eager calls, with the line to change.

In: the kind of a break and its text; or the aspects in which a call differed (`ir/guard_differences.py`).  Out: strs.
Example: `of_recompile(("flag",), "model.training", "train.py:12")` is "Keep `model.training` constant between calls, or
compile a callable for each of its values (train.py:12)."
"""

from __future__ import annotations

import re
from collections.abc import Sequence

NO_FAKE = "no fake impl registered"

# aspect -> advice; {name} is the object or value that differed, in the program's words
BY_ASPECT = {
    "class": "Pass {name} with the same type in every call, or compile a callable for each type",
    "none": "Pass {name} as None in every call or in none, or compile a callable for each",
    "flag": "Keep {name} constant between calls, or compile a callable for each of its values",
    "text": "Keep the text {name} constant between calls, or compile a callable for each text",
    "number": "Pass {name} as a tensor, or compile without dynamic=False so that one compile covers all its values",
    "value": "Keep {name} constant between calls, or compile a callable for each of its values",
    "identity": "Create {name} once, outside of the calls",
    "structure": "Pass {name} with the same structure in every call",
    "dtype": "Pass {name} with the same dtype in every call, or compile a callable for each dtype",
    "device": "Pass {name} on the same device in every call, or compile a callable for each device",
    "requires_grad": "Pass {name} with the same requires_grad in every call",
    "dimensions": "Pass {name} with the same number of dimensions in every call",
    "sizes": "Compile without dynamic=False, or with dynamic=True: one compile then covers all sizes of {name}",
    "strides": "Pass {name}.contiguous(), so that its strides are the same in every call",
    "keys of dispatch": "Pass {name} with the same layout and kind in every call",
    "length": "Keep the length of {name} constant between calls, or pad it to a fixed length",
    "keys": "Keep the keys of {name} and their order constant: create the keys before the first call",
    "elements": "Keep the elements of {name} constant between calls",
    "attribute": "Set the attribute of {name} before the first call",
    "state": "Call with the same grad mode, autocast and defaults in every thread, or compile a callable for each",
    "condition": "Keep the condition on {name} constant between calls",
    "cell": "Bind {name} before the first call",
    "aliases": "Pass the same object twice in every call or in none",
    "relation": "Avoid a branch or a loop bound on {name}: pass it as a tensor, or keep it constant",
    "data": "Keep the branch that {name} decides the same, and give {name} memory of its own",
}
# kind of break -> advice; {text} is the source line
BY_BREAK = {
    "data-dependent-jump": "Compute both sides and choose with torch.where in place of `{text}`",
    "data-dependent-value": "Keep the value as a tensor in `{text}`, or set pycompiler.config.capture_scalar_outputs = True",
    "dynamic-output-shape": "Use an operator of fixed shape (torch.where, not a mask) in place of `{text}`, or set "
    "pycompiler.config.capture_dynamic_output_shape_ops = True",
    "disabled-call": "Remove the mark `disable` from the function that `{text}` calls",
    "explicit-break": "Remove `{text}`",
    "import": "Move `{text}` to the top of the module",
    "builtin-call": "Move `{text}` out of the compiled function, or wrap it in a torch.library.custom_op with a fake",
    "skipped-call": "Move `{text}` out of the compiled function",
}
# kind of break -> the part of the broken statement that a graph runs once the advice is followed; others: the operators
KEPT = {"data-dependent-jump": "value", "data-dependent-value": "value", "dynamic-output-shape": "value", "import": "",
        "builtin-call": "", "skipped-call": ""}  # fmt: skip
PRINTS = re.compile(r"(?<![\w.])(?:print|warn|info|debug|warning|error)\(")
CACHED = re.compile(r"([\w.]+)\(.*a function with functools\.(?:lru_cache|cache)")
BY_EAGER = {
    "skipped": "Remove the cause named above, or leave the function out of the compiled code",
    "failed": "Report it with `python -m pycompiler bisect`, which names the part of the compiler at fault",
    "limit": "Raise pycompiler.config.recompile_limit if the recompiles are meant",
}


def _sentence(text: str, place: str) -> str:
    return f"{text} ({place})." if place else f"{text}."


def of_break(kind: str, reasons: Sequence[str], text: str, hint: str, place: str) -> str:
    """reasons: of the break, and of breaks at the same line that follow from it.  text: the source line.  hint: advice
    for any break of this kind."""
    if any(PRINTS.search(reason) for reason in reasons):
        return _sentence(f"Remove `{text}`, or return the value and print it outside of the compiled function", place)
    if NO_FAKE in reasons[0]:
        return _sentence(f"Register a fake kernel (register_fake) for the operator that `{text}` calls", place)
    if found := CACHED.search(reasons[0]):
        called = found[1].removeprefix("__main__.")
        return _sentence(f"Call `{called}` before the compiled function, and pass its result", place)
    made = BY_BREAK.get(kind)
    return _sentence(made.replace("{text}", text) if made and text else hint[:1].upper() + hint[1:], place)


def kept(kind: str, reasons: Sequence[str]) -> str:
    """The part of a broken statement that a graph runs once the advice is followed: "value", a tensor that later code
    waits for; "operators"; "functions", custom operators; or "", if the statement is removed."""
    if any(PRINTS.search(reason) for reason in reasons) or CACHED.search(reasons[0]):
        return ""
    if NO_FAKE in reasons[0]:
        return "functions"
    return KEPT.get(kind, "operators")


def of_recompile(aspects: Sequence[str], name: str, place: str) -> str:
    made = dict.fromkeys(BY_ASPECT[a] for a in aspects if a in BY_ASPECT)
    shown = name if " " in name else f"`{name}`"
    return _sentence("; ".join(made).replace("{name}", shown) or "Keep the value constant between calls", place)


def of_eager(kind: str, place: str) -> str:
    return _sentence(BY_EAGER.get(kind, BY_EAGER["skipped"]), place)


LOCAL = re.compile(r"\b[LG]\['(\w+)'\]")
ATTRIBUTES = re.compile(r"vars\(([^()]*)\)\['(\w+)'\]")
VALUES = re.compile(r"list\(([^()]*)\.values\(\)\)")
KEYS = re.compile(r"list\(([^()]*)\)\[")


def in_words(source: str) -> str:
    """The name of a source as the program writes it: `vars(G['opt'])['state']` is `opt.state`."""
    text = LOCAL.sub(r"\1", source)
    before = ""
    while before != text:
        before = text
        text = ATTRIBUTES.sub(r"\1.\2", text)
        text = VALUES.sub(r"\1", text)
        text = KEYS.sub(r"\1[", text)
    if text.startswith("__stack") or text.startswith(".0"):
        return "the value of the broken statement"
    return text.replace("._modules['", ".").replace("._parameters['", ".").replace("._buffers['", ".")
