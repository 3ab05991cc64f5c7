"""Dicts of values, and views of them.

A dict that existed before the frame has a source.  Its values are `LazyObject` until used, and its keys are guarded when
read. Changes to it are replayed at the end (`capture/effects/side_effects.py`).

Open key: a str or number that may differ between calls, so that the capture knows its source but not its value.
"""

from __future__ import annotations

import collections
import operator
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, LazyObject, Value
from pycompiler.capture.values.constant import Const, lookup_key
from pycompiler.capture.values.containers.keys import (
    SEPARATE,
    USER_KEYS,
    Key,
    UserKey,
    check_replayable,
    kind_of,
    user_key_among,
)
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.symbolic_numbers import (
    PLAIN_VALUES,
    changes,
    hint_value,
    is_open,
    is_open_text,
    source_of_open,
)
from pycompiler.ir.computed_sources import PLAIN, at_key, has_key, is_same_key
from pycompiler.ir.iterator_state import length_of
from pycompiler.ir.source import Source, const_source

if TYPE_CHECKING:
    from pycompiler.capture.values.containers.sets import Set

T = TypeVar("T")


def keys_now(keyed: Dict | Set) -> list[Key]:
    places = keyed.known_places() if isinstance(keyed, Dict) else None
    return list(keyed.entries) if places is None else places


def last_key(keyed: Dict | Set) -> Key | None:
    """The newest key.  A dict or set with the same newest key and the same size has lost no key."""
    return next(reversed(keys_now(keyed)), None)


class CheckedIterator(Iterator[T]):
    """An iterator over `values` that raises, at each later call, if the dict or set has changed its size since."""

    def __init__(self, cx: Capture, iterated: Dict | Set, values: list[T]) -> None:
        self.cx, self.iterated, self.values, self.at = cx, iterated, values, 0
        self.size, self.last = len(iterated.entries), last_key(iterated)
        # Whether `entries` is the same object at each read.
        self.keeps = isinstance(iterated, Dict) and iterated.entries is iterated.entries
        self.ordered = issubclass(iterated.cls, collections.OrderedDict)
        self.moves = iterated.moves if isinstance(iterated, Dict) else 0

    def __next__(self) -> T:
        if self.at == len(self.values) and self.ordered:  # an OrderedDict's iterator does not check at its end
            raise StopIteration
        self._check()
        if self.at == len(self.values):
            raise StopIteration
        self.at += 1
        return self.values[self.at - 1]

    def _check(self) -> None:
        iterated = self.iterated
        if self.ordered and isinstance(iterated, Dict) and iterated.moves != self.moves:
            self.values, self.at = [], 0
            self.cx.throw(RuntimeError, "OrderedDict mutated during iteration")
        if len(iterated.entries) != self.size:
            self.size = -1  # the iterator stays invalid, also if the size is restored
            kind = "OrderedDict" if self.ordered else "dictionary" if isinstance(iterated, Dict) else "Set"
            self.cx.throw(RuntimeError, f"{kind} changed size during iteration")
        last = last_key(iterated)
        if last is not self.last and (self.keeps or last != self.last):
            raise Break("unsupported-operation", f"a {iterated.cls.__name__} whose members change while it is iterated")


class Count(Const):
    """A number added to the int at some key of an existing dict, whichever key that is."""


class Dict(Value):
    """A dict, OrderedDict, defaultdict, or the dict behind a mapping proxy."""

    def __init__(
        self, items: dict[Key, Value], cls: type = dict, *, real: Any = None, default_factory: Value | None = None
    ) -> None:
        self.unasked: list[
            tuple[Value, Value]
        ] = []  # latest stores, under open keys that may equal any key of an existing dict
        self.entries = items
        self.cls = cls
        self.real = real  # an existing dict: its keys are guarded when they are read as a whole
        self.default_factory = default_factory
        self.keys_guarded = real is None
        self.opened: list[Key] = []  # open keys, guarded to differ from all other keys that were looked up
        self.by_place = False  # whether all keys are open, each known by its position, and there are no others
        self.met: dict[Key, None] = {}  # str and number keys that were looked up
        self.is_odd = False  # whether a key was looked up that may equal a str or number without being one
        self.added: set[Key] = set()  # keys that the program added where none was, or none any more
        self.taken: set[Key] = set()  # keys of the original dict that the program removed
        self.changed = False
        self.counting = False  # whether all changes so far are counts (`Count`)
        self.emptied = self.flushed = 0
        self.restless = real is not None and user_key_among(items) is not None
        self.attributes: dict[str, Value] = {}  # of an OrderedDict created here
        self.moves = 0  # changes of the set or the order of keys; each invalidates an OrderedDict's iterators
        self.seen_by: type = dict  # the class of the views' owner: a class's attributes are behind a mapping proxy

    @property
    def entries(self) -> dict[Key, Value]:
        """The entries at known keys.  A read fixes the open keys: they become constants."""
        self._flush()
        opened, self.opened = self.opened, []
        for key in opened:
            self._closed(self.cx, key)
        return self.raw

    @entries.setter
    def entries(self, entries: dict[Key, Value]) -> None:
        self.raw = entries

    def _flush(self) -> None:
        """Perform the stores under open keys that may equal any key."""
        stores, self.unasked = self.unasked, []
        self.flushed += bool(stores)
        self.counting = self.counting and not stores
        for known, value in stores:
            key = self.key(self.cx, known)
            if isinstance(value, Count):
                value = self._counted(key, value)
            if not self.contains_key(self.cx, key) and self.found(self.cx, key) is None:
                self.added.add(key)
            self.raw[key] = value

    def entries_at(self, key: Key) -> dict[Key, Value]:
        """The entries that may contain `key`.  Stores under open keys of the same kind are performed first."""
        kind = kind_of(key.value) if key.place is not None or isinstance(key.value, Const) else None
        if any(kind is None or kind_of(k) is kind for k, _ in self.unasked):
            self._flush()
        return self.raw

    def known(self) -> Iterable[Key]:
        """The known keys, without a guard; open keys of pending stores are not included."""
        return self.raw

    def held(self) -> Iterable[Value]:
        """The values, without a guard."""
        return [*self.raw.values(), *(value for _, value in self.unasked)]

    def contents(self) -> Any:
        """The current contents, for the replay of a write.

        Entries, pending stores behind them, how often the dict was emptied and how often pending stores became entries,
        and whether there are no other keys.
        """
        return dict(self.raw), [*self.unasked], (self.emptied, self.flushed), self.keys_guarded

    def describe(self) -> str:
        return f"{self.cls.__name__} of {len(self.raw)}"

    __repr__ = describe

    def python_type(self) -> type:
        return self.cls

    def key(self, cx: Capture, value: Value) -> Key:
        """The key to search for or store.  An id becomes a number if the dict has number keys."""
        opened = self._open(cx, value) if is_open(value) else None
        if opened is not None:
            return opened
        value = cx.realize(value)
        others = self.known() if isinstance(value, Const) else self.entries
        made = Key(cx, lookup_key(cx, value, (k.value for k in others)))
        if (
            issubclass(self.cls, collections.OrderedDict) and user_key_among([made]) is not None
        ):  # OrderedDict calls the methods more than once
            raise Break("unsupported-operation", USER_KEYS)
        return made if self.keys_guarded or self.source is None else self._meet(cx, made)

    def asks_keys(self) -> bool:
        """Whether an existing dict accepts open keys."""
        return (
            type(self) is Dict and self.source is not None and not (self.keys_guarded or self.restless or self.is_odd)
        )

    def _open(self, cx: Capture, value: Value) -> Key | None:
        """The open key of a str or number that differs between calls; None if its value must be used."""
        place = source_of_open(cx, value) if self.asks_keys() and changes(cx, value) else None
        if place is None:
            return None
        self.cx = cx
        made = Key(cx, Const(hint_value(value)))
        for other in self.opened:
            if other.place == place:
                return other
        same = next((k for k in self.opened if k == made), None)
        # Same key in this call: guard that the two stay equal.
        if same is not None and type(hint_value(same.value)) is type(hint_value(value)):
            if isinstance(value, LazyObject):
                value.guard_class(cx)
            cx.guard("equals", cx.computed(is_same_key, place, same.place), True)
            return same
        others = [*self.opened, *self.met]
        found = next((k for k in self.raw if k == made), made)
        known = self.raw.get(found)
        seen = known is not None and not (isinstance(known, LazyObject) and known.seen is None)
        if seen or any(k == made for k in others):
            return None
        if isinstance(value, LazyObject):
            value.guard_class(cx)
        for other in others:
            if kind_of(other.value) is kind_of(value):
                there = const_source(other.value.const()) if other.place is None else other.place
                cx.guard("equals", cx.computed(is_same_key, place, there), False)
        found.own = found.value if known is not None else None
        found.value, found.place = value, place
        if isinstance(known, LazyObject):
            assert self.source is not None
            self.raw[found] = cx.lazy(known.real, cx.computed(at_key, self.source, place))
        self.opened.append(found)
        return found

    def _meet(self, cx: Capture, made: Key) -> Key:
        """Guard that a constant key differs from all open keys.  An open key with its value in this call becomes a
        constant."""
        if not (isinstance(made.value, Const) and type(made.value.value) in PLAIN):
            apart = (
                isinstance(made.value, Tuple)
                or isinstance(made.value, Const)
                and isinstance(made.value.value, SEPARATE)
            )
            if not apart:
                _ = self.entries
                self.is_odd = True
        elif made not in self.met:
            for same in [k for k in self.opened if k == made]:
                self.opened.remove(same)
                self._closed(cx, same)
            for other in self.opened:
                if kind_of(other.value) is kind_of(made.value):
                    place = const_source(made.value.value)
                    cx.guard("equals", cx.computed(is_same_key, other.place, place), False)
            self.met[made] = None
        return made

    def _closed(self, cx: Capture, key: Key) -> None:
        """Turn an open key into a constant."""
        settled = cx.realize(key.value, "as a key")
        key.value, key.place = settled if key.own is None else key.own, None
        self.met[key] = None

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        if self.cls is not collections.OrderedDict or self.source is not None or hasattr(self.cls, name):
            super().setattr(cx, name, value)
        cx.effects.allow(self, f"{self.describe()}.{name}")
        cx.facts.change("attribute", self, name)
        self.attributes[name] = value

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if self.cls is collections.OrderedDict and self.real is not None and self.source is not None:
            if name in vars(self.real):  # only OrderedDict instances have attributes of their own
                raise Break("unsupported-attribute", f"{name}, an instance attribute of an OrderedDict")
            cx.guard("instance_absent", self.source, name)
        if name == "default_factory" and self.cls is collections.defaultdict:
            return Const(None) if self.default_factory is None else self.default_factory
        return super().getattr(cx, name)

    def guard_keys(self, cx: Capture) -> None:
        if self.keys_guarded or self.source is None:
            return
        _ = self.entries  # open keys become constants first
        self.keys_guarded = True
        cx.guard_dict_keys(self.source, self.real)
        self.guard_hashes(cx)

    def at_places(self, cx: Capture, keys: dict[Key, Value], source: Source) -> None:
        """All keys are numbers that differ between calls: only their count is fixed, and each is read at its position."""
        for i, key in enumerate(keys):
            key.place = source.then("dict_key_at", i)
        self.cx, self.opened, self.by_place = cx, [*keys], True

    def known_places(self) -> list[Key] | None:
        """The keys if they are known by their positions; else None."""
        keys = list(self.raw) if self.by_place else []
        return keys if keys and keys == self.opened and not self.unasked else None

    def pairs(self, cx: Capture) -> list[tuple[Value, Value]]:
        if (keys := self.known_places()) is not None:
            return [(k.value, self.at(cx, k)) for k in keys]
        self.guard_keys(cx)
        return [(k.value, self.at(cx, k)) for k in list(self.entries)]

    def at(self, cx: Capture, key: Key) -> Value:
        entries = self.entries_at(key)
        value = entries[key]
        if isinstance(value, LazyObject):
            value = entries[key] = cx.realize(value)
        return value

    def guard_hashes(self, cx: Capture) -> None:
        """Guard that the hash a key had when it was stored is the key's hash now."""
        if self.real is None or self.source is None:
            return
        for key in self.known():
            if not isinstance(key.key, UserKey) or key.value.source is None:
                continue
            if key.key.calm:
                cx.guard("dict_contains", self.source, key.key.value.real)
                continue
            cx.guard_dict_keys(self.source, self.real)

    def lookup(self, cx: Capture, key: Value) -> Value | None:
        return self.found(cx, self.key(cx, key))

    def found(self, cx: Capture, k: Key) -> Value | None:
        """The value at a key, or None.  The absence is guarded."""
        if k in self.entries_at(k):
            return self.at(cx, k)
        self.guard_hashes(cx)
        if not self.keys_guarded and self.source is not None and k not in self.taken:
            self._guard_key(cx, k, "dict_absent")
        return None

    def _guard_key(self, cx: Capture, k: Key, kind: str) -> None:
        assert self.source is not None
        if k.place is not None:
            cx.guard("equals", cx.computed(has_key, self.source, k.place), kind == "dict_contains")
        elif k.value.is_const():
            cx.guard(kind, self.source, k.value.const())
        else:
            self.guard_keys(cx)

    def getitem(self, cx: Capture, key: Value) -> Value:
        found = self.lookup(cx, key)
        if found is not None:
            return found
        if self.default_factory is not None and issubclass(self.cls, collections.defaultdict):
            made = cx.call(self.default_factory, [], {})
            self.setitem(cx, key, made)
            return made
        cx.throw_value(KeyError, [key])
        raise AssertionError

    def mutate(self, cx: Capture, drops: Iterable[Value] | None = None, keys: list[Key] | None = None) -> None:
        """Call before a change of these keys (each is looked up), or of any key (None)."""
        self.counting = False
        check_replayable(self, keys or ())
        if keys is None or self.restless:
            self.guard_keys(cx)
        for k in keys or ():
            if not self.contains_key(cx, k):
                self.found(cx, k)
        cx.effects.mutate(self, drops)

    def counts(self, cx: Capture, key: Value, number: int) -> bool:
        """Add to the int at an open key that may be any key of the dict.

        False if the dict has other changes, or no int is there.
        """
        if self.source is None or self.keys_guarded or self.restless or (self.changed and not self.counting):
            return False
        zero = 0 if issubclass(self.cls, (collections.Counter, collections.defaultdict)) else None
        if type(dict.get(self.real, hint_value(key), zero)) is not int:
            return False
        if isinstance(key, LazyObject):
            key.guard_class(cx)
        cx.effects.count(self, key, zero=zero is not None)
        self.unasked.append((key, Count(number)))
        self.cx, self.counting = cx, True
        return True

    def _counted(self, key: Key, tally: Count) -> Value:
        """The value at a counted key."""
        there = key in self.raw or self.found(self.cx, key) is not None
        known = self.at(self.cx, key) if there and self.contains_key(self.cx, key) else Const(0)
        return self.cx.call(self.cx.make(operator.add), [known, Const(tally.value)], {})

    def takes(self, key: Value) -> bool:
        """Whether a store under an open str leaves it open."""
        return is_open_text(key) and self.asks_keys()

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        """`key` is a `LazyObject` only where `takes` returned True."""
        if isinstance(key, LazyObject):
            key.guard_class(cx)
        place = source_of_open(cx, key) if self.opened and is_open(key) else None
        known = place is not None and any(k.place == place for k in self.opened)
        if self.source is None or self.keys_guarded or self.restless or known or not is_open(key):
            self.store(cx, self.key(cx, key), value)
            return
        check_replayable(self, ())
        self.counting = False
        cx.effects.store_unasked(self, key)
        self.unasked.append((key, value))
        self.cx = cx

    def store(self, cx: Capture, k: Key, value: Value) -> None:
        entries = self.entries_at(k)
        there = k in entries
        if not there:  # a new key comes after the pending stores
            self._flush()
        self.mutate(cx, [entries[k]] if there else (), [k])
        self.moves += not there
        if not there and not self.keys_guarded:
            self.added.add(k)
        entries[k] = value

    def delitem(self, cx: Capture, key: Value) -> None:
        k = self.key(cx, key)
        if not self.contains_key(cx, k) and self.found(cx, k) is None:
            cx.throw_value(KeyError, [key])
        self.remove(cx, k)

    def remove(self, cx: Capture, k: Key) -> None:
        entries = self.entries_at(k)
        self.mutate(cx, [entries[k]], [k])
        self.moves += 1
        if not self.keys_guarded:
            (self.added.discard if k in self.added else self.taken.add)(k)
        del entries[k]
        if k.place is not None:  # if the key is added again, it is a new key
            again = Key(cx, Const(hint_value(k.value)))
            again.value, again.place = k.value, k.place
            self.opened = [again if other is k else other for other in self.opened]

    def iterate(self, cx: Capture) -> Iterator[Value]:
        return self.in_order(cx, 1)

    def in_order(self, cx: Capture, step: int) -> Iterator[Value]:
        """The keys, forwards or backwards (-1)."""
        self.guard_keys(cx)
        return CheckedIterator(cx, self, [k.value for k in self.entries][::step])

    def length(self, cx: Capture) -> Value:
        if (places := self.known_places()) is not None:
            return Const(len(places))
        if self.asks_keys():
            self._flush()
        if self.source is not None and self.asks_keys():
            known = cx.sizes.integer(length_of(self.real), self.source.then("begun", length_of))
            if known is not None:
                return cx.make(known + len(self.added) - len(self.taken))
        self.guard_keys(cx)
        return Const(len(self.entries))

    def truth(self, cx: Capture) -> bool:
        self._flush()
        if not self.keys_guarded and self.source is not None and not self.added:
            if not self.known() and not self.taken:
                cx.guard("length", self.source, 0)
            elif self.taken or not self.says_truth():
                self.guard_keys(cx)
            else:
                cx.guard("truth", self.source, True)
        return bool(self.known())

    def says_truth(self) -> bool:
        """Whether an existing dict is true iff it is not empty."""
        cls = type(self.real)
        return cls.__len__ in (dict.__len__, collections.OrderedDict.__len__) and not hasattr(cls, "__bool__")

    def empty(self, cx: Capture) -> None:
        """Remove all entries without a guard on them."""
        if self.restless:
            self.guard_keys(cx)
        cx.effects.mutate(self)
        self.emptied += 1
        self.entries, self.unasked, self.keys_guarded, self.counting = {}, [], True, False
        self.opened, self.met = [], {}

    def contains(self, cx: Capture, item: Value) -> bool:
        k = self.key(cx, item)
        return self.contains_key(cx, k) or self.found(cx, k) is not None

    def contains_key(self, cx: Capture, k: Key) -> bool:
        """Whether it has the key.  Presence is guarded."""
        there = k in self.entries_at(k)
        if there and not self.keys_guarded and self.source is not None and k not in self.added:
            self._guard_key(cx, k, "dict_contains")
        return there


class Proxy(Value):
    """types.MappingProxyType(mapping): a live view that stores nothing."""

    READS = ("get", "keys", "values", "items", "copy")

    def __init__(self, mapping: Dict) -> None:
        self.mapping = mapping

    def python_type(self) -> type:
        return types.MappingProxyType

    def getattr(self, cx: Capture, name: str) -> Value:
        return self.mapping.getattr(cx, name) if name in self.READS else super().getattr(cx, name)

    def getitem(self, cx: Capture, key: Value) -> Value:
        return self.mapping.getitem(cx, key)

    def iterate(self, cx: Capture) -> Iterator[Value]:
        return self.mapping.iterate(cx)

    def in_order(self, cx: Capture, step: int) -> Iterator[Value]:
        return self.mapping.in_order(cx, step)

    def length(self, cx: Capture) -> Value:
        return self.mapping.length(cx)

    def truth(self, cx: Capture) -> bool:
        return self.mapping.truth(cx)

    def contains(self, cx: Capture, item: Value) -> bool:
        return self.mapping.contains(cx, item)

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        cx.throw(TypeError, "'mappingproxy' object does not support item assignment")

    def delitem(self, cx: Capture, key: Value) -> None:
        cx.throw(TypeError, "'mappingproxy' object does not support item deletion")


class LocalsDict(Dict):
    """The result of `locals()` in a frame.  A later call updates it."""

    def __init__(self, frame: object) -> None:
        super().__init__({})
        self.frame = weakref.ref(frame)  # the frame; the contents live until both are dropped


class DictView(Value):
    """keys(), values() or items() of a dict."""

    CLASSES = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}
    ORDERED = {n: type(getattr(collections.OrderedDict(), n)()) for n in CLASSES}

    def __init__(self, mapping: Dict, what: str) -> None:
        self.mapping = mapping
        self.owner = mapping.within  # the instance of a dict subclass, if any
        self.what = what

    def python_type(self) -> type:
        return (self.ORDERED if self.is_ordered() else self.CLASSES)[self.what]

    def is_ordered(self) -> bool:
        """Whether the dict is an OrderedDict, whose order only its own methods know."""
        return issubclass(self.mapping.python_type(), collections.OrderedDict)

    def iterate(self, cx: Capture) -> Iterator[Value]:
        return self.in_order(cx, 1)

    def in_order(self, cx: Capture, step: int) -> Iterator[Value]:
        """The elements, forwards or backwards (-1)."""
        mapping = self.mapping
        if self.what == "keys":
            return mapping.in_order(cx, step)
        if (known := mapping.known_places()) is not None:
            return self._at_places(cx, known, step)
        mapping.pairs(cx)
        return map(lambda key: self.element(cx, key), CheckedIterator(cx, mapping, list(mapping.entries)[::step]))

    def _at_places(self, cx: Capture, keys: list[Key], step: int) -> Iterator[Value]:
        for key in keys[::step]:
            if self.mapping.known_places() != keys:
                raise Break("unsupported-operation", "a dict whose keys change while it is iterated")
            value = self.mapping.at(cx, key)
            yield value if self.what == "values" else Tuple([key.value, value])

    def element(self, cx: Capture, key: Key) -> Value:
        """The element of a live iterator at a key: its current value."""
        if key not in self.mapping.entries:
            raise Break("unsupported-operation", "a dict whose keys change while it is iterated")
        value = self.mapping.at(cx, key)
        return value if self.what == "values" else Tuple([key.value, value])

    def length(self, cx: Capture) -> Value:
        return self.mapping.length(cx)

    def truth(self, cx: Capture) -> bool:
        return self.mapping.truth(cx)

    def contains(self, cx: Capture, item: Value) -> bool:
        if self.what == "keys":
            return self.mapping.contains(cx, item)
        if self.what == "values":
            return any(cx.alike(v, item) for v in self.iterate(cx))
        if not isinstance(item, Tuple) or len(item.items) != 2:
            if not isinstance(item, PLAIN_VALUES) or issubclass(item.python_type(), tuple):
                raise Break("unsupported-operation", f"{item.describe()} in the items of a dict")
            return False
        found = self.mapping.lookup(cx, item.at(cx, 0))
        return found is not None and cx.alike(found, item.at(cx, 1))


class KeysOf(DictView):
    """keys() of an existing dict that only the view refers to.  The capture does not know whether the program changed
    the dict."""

    def _settled(self, cx: Capture) -> None:
        if cx.effects:
            raise Break(
                "unsupported-operation", "keys() of an existing dict, after an effect that may have changed the dict"
            )

    def in_order(self, cx: Capture, step: int) -> Iterator[Value]:
        self._settled(cx)
        return self._each(cx, super().in_order(cx, step))

    def _each(self, cx: Capture, elements: Iterator[Value]) -> Iterator[Value]:
        for value in elements:
            yield value
            self._settled(cx)

    def length(self, cx: Capture) -> Value:
        self._settled(cx)
        return super().length(cx)

    def truth(self, cx: Capture) -> bool:
        self._settled(cx)
        return super().truth(cx)

    def contains(self, cx: Capture, item: Value) -> bool:
        self._settled(cx)
        return super().contains(cx, item)
