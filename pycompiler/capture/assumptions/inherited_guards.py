"""Guards on inherited attributes of a class that each call creates.  They guard the base classes instead: the class's
stand-in loses its bases when the capture is over (`attributes.unlist_subclass`).

In: a guard's kind, source and argument.  Out: equivalent guards on existing classes.
"""

from __future__ import annotations

import itertools
import types
from typing import Any

from pycompiler.capture.values.attributes import ClassState, is_mutable, mro_lookup
from pycompiler.capture.values.interface import Capture
from pycompiler.ir.source import Source, const_source, mro_of, namespace_of

LIBRARY = ("typing", "enum", "abc", "dataclasses", "functools")
GuardParts = tuple[str, Source, Any, tuple[Source, ...]]


def replacement_guards(
    cx: Capture, kind: str, source: Source, arg: Any, others: tuple[Source, ...]
) -> list[GuardParts] | None:
    """The guards that replace a guard; None: the guard itself."""
    inherited = Inherited.of(cx, source)
    if kind == "class_absent" and source.base is None and inherited is not None:
        return inherited.absent(cx, arg)
    if inherited is not None and len(links(source)) <= 3 and any(is_mro(link) for link in links(source)):
        return inherited.same()  # guards on the whole mro
    if any(is_own(cx, s) and not _is_of_library(s) for s in (source, *others)) or (is_own(cx, source) and not others):
        return []  # the frame itself has stored it
    moved, lacking = zip(*(_moved(cx, _in_place(cx, s)) for s in (source, *others)), strict=True)
    if all(a is b for a, b in zip(moved, (source, *others), strict=True)):
        return None
    return [*itertools.chain(*lacking), (kind, moved[0], arg, moved[1:])]


def links(source: Source) -> list[Source]:
    """The links of a chain, from its root on."""
    found = [source]
    while found[0].base is not None:
        found.insert(0, found[0].base)
    return found


def is_own(cx: Capture, source: Source) -> bool:
    """Whether a source is an attribute that the frame has put into a class."""
    direct = source.kind == "mro_lookup" and source.base is not None and source.base.base is None
    inherited = Inherited.of(cx, source) if direct else None
    return inherited is not None and any(source.arg in namespace_of(c) for c in inherited.made)


def _is_of_library(source: Source) -> bool:
    """Whether a hook of the standard library has put an attribute into a class."""
    assert source.base is not None
    raw = mro_lookup(source.base.arg, source.arg)
    return isinstance(raw, types.FunctionType) and raw.__module__ in LIBRARY


def _in_place(cx: Capture, source: Source) -> Source:
    """A source inside an attribute that the frame has put into a class, rewritten to start at that object.

    Another attribute may be in its place later.
    """
    chain = links(source)
    if len(chain) < 2 or not is_own(cx, chain[1]):
        return source
    return _along(const_source(mro_lookup(chain[0].arg, chain[1].arg)), chain[2:])


def is_mro(link: Source) -> bool:
    """Whether a link leads from a class to its mro."""
    return link.kind == "attr" and link.arg == "__mro__" and link.base is not None and link.base.base is None


def place(cx: Capture, source: Source) -> Source:
    """The source of an inherited attribute that is valid in later calls; guards that the attribute is found there."""
    moved, lacking = _moved(cx, source)
    for guard in lacking:
        cx.guard(*guard)
    return moved


class Inherited:
    """The bases of a class that the frame creates, in mro order."""

    def __init__(self, made: list[type], classes: list[type]) -> None:
        self.made, self.classes = made, classes

    @classmethod
    def of(cls, cx: Capture, source: Source) -> Inherited | None:
        root = source.root
        if root.kind != "const" or not any(root.arg is made for made in cx.made_classes):
            return None
        made = [c for c in mro_of(root.arg) if any(c is other for other in cx.made_classes)]
        return cls(made, [c for c in mro_of(root.arg) if not any(c is m for m in made)])

    def is_one(self) -> bool:
        """Whether the mro of the first base is the rest of the mro."""
        return mro_of(self.classes[0]) == tuple(self.classes)

    def absent(self, cx: Capture, name: str) -> list[GuardParts]:
        if self.is_one():
            return [("class_absent", const_source(self.classes[0]), name, ())]
        return _lack(cx, self.classes, name)

    def same(self) -> list[GuardParts]:
        """Guards that all bases keep their mro."""
        return [("id_is", const_source(c).attr("__mro__"), mro_of(c), ()) for c in self.classes if is_mutable(c)]

    def holder(self, name: str) -> tuple[list[type], type]:
        """The class that an attribute is found through, and the classes before it, which lack the attribute."""
        if self.is_one():
            return [], self.classes[0]
        at = next(i for i, c in enumerate(self.classes) if name in namespace_of(c))
        return self.classes[:at], self.classes[at]


def _moved(cx: Capture, source: Source) -> tuple[Source, list[GuardParts]]:
    """The same attribute, reached from an existing class, and the guards needed for it."""
    chain = links(source)
    inherited = Inherited.of(cx, source)
    if inherited is not None and len(chain) > 2 and is_mro(chain[1]) and chain[2].kind == "item":
        cls = mro_of(source.root.arg)[chain[2].arg]
        return _along(const_source(cls), chain[3:]), inherited.same()
    if inherited is None or len(chain) == 1 or chain[1].kind != "mro_lookup":
        return source, []
    name = chain[1].arg
    if any(name in namespace_of(c) for c in inherited.made):
        return source, []
    before, holder = inherited.holder(name)
    return _along(const_source(holder), chain[1:]), _lack(cx, before, name)


def _along(source: Source, chain: list[Source]) -> Source:
    for link in chain:
        source = source.then(link.kind, link.arg)
    return source


def _lack(cx: Capture, classes: list[type], name: str) -> list[GuardParts]:
    owns = [cx.kept.setdefault(("own", id(c), name), ClassState(c, name)) for c in classes if is_mutable(c)]
    return [("equals", const_source(own).attr("held"), False, ()) for own in owns]
