"""Classes of a program: `C0`, possibly a subclass `C1`, and the module `Net`, composed of features.

A feature is a piece of a class body in several forms, rows that use it, and ways in which it changes between two
calls. All objects have `size`, `t` and `items`, in whatever storage.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Feature:
    """A part of a class."""

    forms: tuple[str, ...]
    expressions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    statements: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    """Forms of the feature in a subclass."""


BASE = Feature(
    forms=(),
    expressions={
        "int": ("<obj>.size", "<obj>.size", "<obj>.items[0]", "len(<obj>.items)", "getattr(<obj>, 'size', <int>)", "C0.shared", "<obj>.shared",
                "getattr(<obj>, 'zz', <int>)", "sum(ob.size for ob in <objs>)", "max(<objs>, key=lambda ob: ob.size).size"),
        "tensor": ("<obj>.t", "<obj>.t", "<obj>.t * <obj>.size", "functools.reduce(lambda u, ob: u + ob.t, <objs>, <tensor>)"),
        "bool": ("<obj> is <obj>", "isinstance(<obj>, C0)", "hasattr(<obj>, <str>)", "<obj> in <objs>", "type(<obj>) is C0", "<obj> == <obj>", "bool(<obj>)",
                 "issubclass(type(<obj>), C0)", "callable(<obj>)", "'size' in dir(<obj>)"),
        "list": ("<obj>.items", "[ob.size for ob in <objs>]", "sorted(vars(type(<obj>)).keys() & {'shared'})"),
        "str": ("type(<obj>).__name__", "<obj>.__class__.__qualname__", "C0.__name__"),
        "any": ("<obj>.__class__", "type(<obj>).__mro__[0]"),
    },
    statements=(
        "<obj>.size = <int>", "<obj>.size += <int>", "<obj>.t = <tensor>", "<obj>.items.append(<int>)", "<obj>.items = <list>", "<obj>.extra = <any>",
        "del <obj>.extra", "o.__class__ = type(p)", "setattr(<obj>, 'size', <int>)", "C0.shared += 1", "<obj>.shared = <int>", "objs[0].size = <int>",
        "LOG.append(<obj>)", "LOG.append(getattr(<obj>, 'extra', None))", "<obj>.items += [*<ints>][:3]", "p.__dict__.update(size=<int>)", "vars(o)['size'] = <int>",
    ),
    changes=("o.size = 5", "C0.shared = 9", "o.items.append(1)", "o, p = p, o", "o.t = o.t * 2", "p.__class__ = C0", "o.extra = 1", "C0.extra = 4",
             "p.__dict__ = dict(p.__dict__, size=2)", "del o.items", "o.size = 2.5", "p = o", "C0.size = 3", "C0.__eq__ = lambda self, other: True"),
)  # fmt: skip

STORES: dict[str, str] = {
    "plain": "",
    "slots": '    __slots__ = ("size", "t", "items", "extra", "_size", "__weakref__")',
    "slots and dict": '    __slots__ = ("size", "items", "__dict__")',
    "property": """    @property
    def size(self):
        return self._size
    @size.setter
    def size(self, value):
        LOG.append(("size", value))
        self._size = value""",
    "read-only": """    size = property(lambda self: len(self.items) + 1)""",
    "descriptor": """    size = Field(3)""",
    "cached": """    @functools.cached_property
    def total(self):
        LOG.append("total")
        return self.size + 1""",
}
"""The ways to store `size`."""

FIELD = """
class Field:
    def __init__(self, default):
        self.default = default
    def __set_name__(self, owner, name):
        self.name = "_" + name
    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        LOG.append("get")
        return instance.__dict__.get(self.name, self.default)
    def __set__(self, instance, value):
        instance.__dict__[self.name] = value
"""

FEATURES: dict[str, Feature] = {
    "Total": Feature(
        ("    @functools.cached_property\n    def total(self):\n        LOG.append('total')\n        return self.size + 1",
         "    @property\n    def total(self):\n        <block>\n        return self.size + len(self.items)",
         "    total = property(operator.attrgetter('size'))"),
        {"int": ("<obj>.total", "<obj>.total + <int>")}, ("<obj>.total = <int>", "del <obj>.total"),
        ("C0.total = 4", "C0.total = property(lambda self: 11)"),
        ("    @property\n    def total(self):\n        return super().total + 1",),
    ),
    "Grow": Feature(
        ("    def grow(self, k=1):\n        self.size += k\n        <block>\n        return self.size",
         "    def grow(self, k=1, *more, by=2, **names):\n        <block>\n        return self.size + k + by + len(more) + len(names)",
         "    @deco\n    def grow(self, k=1):\n        self.items.append(k)\n        <block>\n        return k"),
        {"int": ("<obj>.grow(<int>)", "<obj>.grow()", "C0.grow(<obj>, <int>)", "sum(ob.grow(1) for ob in <objs>)"), "fn": ("<obj>.grow", "(<obj>.grow or abs)")},
        ("<obj>.grow(<int>)", "<obj>.grow = <fn>", "C0.grow = lambda self, k=1: <int|k:int>"),
        ("C0.grow = lambda self, k=1: k + 5", "o.grow = lambda k=1: 3", "C0.grow.__defaults__ = (4,)"),
        ("    def grow(self, k=2):\n        return super().grow(k) + 1", "    def grow(self, k=1):\n        <block>\n        return super(C1, self).grow(k)"),
    ),
    "Apply": Feature(
        ("    def apply(self, t):\n        <block>\n        return t * self.size + self.t", "    def apply(self, t):\n        self.t = t\n        <block>\n        return t + 1"),
        {"tensor": ("<obj>.apply(<tensor>)", "<obj>.apply(t=<tensor>)"), "tfn": ("<obj>.apply",)}, ("<obj>.apply(<tensor>)",), ("C0.apply = lambda self, t: t - 1",),
        ("    def apply(self, t):\n        t = super().apply(t)\n        <block>\n        return t",),
    ),
    "Make": Feature(
        ("    @classmethod\n    def make(cls, k):\n        <block>\n        return cls(k, GT)", "    @classmethod\n    def make(cls, k):\n        cls.shared += k\n        return cls(k, GT + k)"),
        {"obj": ("C0.make(<int>)", "<obj>.make(<int>)", "type(<obj>).make(<int>)")}, (), (),
        ("    @classmethod\n    def make(cls, k):\n        return super().make(k + 1)",),
    ),
    "Twice": Feature(
        ("    @staticmethod\n    def twice(k):\n        <block>\n        return k * 2",), {"int": ("C0.twice(<int>)", "<obj>.twice(<int>)"), "fn": ("C0.twice", "<obj>.twice")}, (),
        ("C0.twice = staticmethod(lambda k: k - 1)",),
    ),
    "Len": Feature(("    def __len__(self):\n        return len(self.items)", "    def __len__(self):\n        <block>\n        return abs(self.size)"),
                   {"int": ("len(<obj>)",)}, (), ("C0.__len__ = lambda self: 0",)),  # fmt: skip
    "Bool": Feature(("    def __bool__(self):\n        LOG.append('bool')\n        return self.size > 1", "    def __bool__(self):\n        <block>\n        return bool(self.items)"),
                    {"bool": ("not <obj>",), "obj": ("(<obj> or <obj>)", "(<obj> and <obj>)")}, (), ("C0.__bool__ = lambda self: False",)),  # fmt: skip
    "Iter": Feature(("    def __iter__(self):\n        <block>\n        yield self.size\n        yield from self.items", "    def __iter__(self):\n        return iter(self.items)",
                     "    def __iter__(self):\n        self.at = 0\n        return self\n    def __next__(self):\n        if self.at > 1:\n            raise StopIteration\n        self.at += 1\n        return self.at"),
                    {"ints": ("<obj>",), "list": ("list(<obj>)", "[*<obj>]"), "int": ("sum(<obj>)", "next(iter(<obj>))")}, ("<=int>, *<=list> = <obj>",)),  # fmt: skip
    "Item": Feature(("    def __getitem__(self, k):\n        LOG.append(('item', k))\n        return self.items[k]\n    def __setitem__(self, k, value):\n        self.items[k] = value",
                     "    def __getitem__(self, k):\n        <block>\n        if k > 2:\n            raise IndexError(k)\n        return k"),
                    {"int": ("<obj>[<int>]", "<obj>[0]")}, ("<obj>[0] = <int>", "<obj>[<int>] += 1")),  # fmt: skip
    "Contains": Feature(("    def __contains__(self, k):\n        LOG.append('contains')\n        return k in self.items", "    def __contains__(self, k):\n        <block>\n        return k"),
                        {"bool": ("<int> in <obj>", "<int> not in <obj>")}),  # fmt: skip
    "Add": Feature(("    def __add__(self, other):\n        if isinstance(other, C0):\n            return type(self)(self.size + other.size, self.t + other.t)\n        return NotImplemented\n"
                    "    def __radd__(self, k):\n        return C0(self.size + k, self.t)",
                    "    def __add__(self, other):\n        <block>\n        return C0(self.size, self.t + 1)\n    def __iadd__(self, other):\n        self.size += 1\n        return self"),
                   {"obj": ("<obj> + <obj>", "(<int> + <obj>)", "sum(<objs>)")}, ("o += <obj>",)),  # fmt: skip
    "Mul": Feature(("    def __mul__(self, t):\n        return self.t * t\n    __rmul__ = __mul__",), {"tensor": ("<obj> * <tensor>", "<tensor> * <obj>")}),
    "Torch": Feature(("    @classmethod\n    def __torch_function__(cls, func, types, args=(), kwargs=None):\n        LOG.append(func.__name__)\n"
                      "        return func(*[a.t if isinstance(a, C0) else a for a in args], **(kwargs or {}))",),
                     {"tensor": ("torch.add(<obj>, <tensor>)", "torch.sin(<obj>)", "<tensor> * <obj>")}),  # fmt: skip
    "Eq": Feature(("    def __eq__(self, other):\n        LOG.append('eq')\n        return isinstance(other, C0) and self.size == other.size\n    def __hash__(self):\n        return hash(self.size)",
                   "    def __eq__(self, other):\n        return NotImplemented\n    __hash__ = object.__hash__", "    def __eq__(self, other):\n        <block>\n        return self is other"),
                  {"bool": ("<obj> != <obj>", "<obj> in <objs>", "<objs> == <objs>"), "int": ("<objs>.index(<obj>)", "len({ob: 1 for ob in <objs>})", "len(set(<objs>))",
                   "{<obj>: <int>}[<obj>]", "<objs>.count(<obj>)")}),  # fmt: skip
    "Order": Feature(("    def __lt__(self, other):\n        LOG.append('lt')\n        return self.size < other.size",), {"obj": ("max(<objs>, key=lambda ob: ob.size)", "sorted(<objs>)[0]", "min(<objs>)")}),
    "Call": Feature(("    def __call__(self, t):\n        self.size += 1\n        <block>\n        return t * 2", "    def __call__(self, t, *more):\n        return torch.relu(t) + self.t"),
                    {"tensor": ("<obj>(<tensor>)",), "tfn": ("<obj>",)}, (), ("C0.__call__ = lambda self, t: t",),
                    ("    def __call__(self, t):\n        return super().__call__(t) + 1",)),  # fmt: skip
    "Getattr": Feature(("    def __getattr__(self, name):\n        if name.startswith('_') or name in ('size', 't', 'items', 'at'):\n            raise AttributeError(name)\n        LOG.append(('getattr', name))\n        return len(name)",
                        "    def __getattr__(self, name):\n        if name == 'zz':\n            return 3\n        raise AttributeError(f'no {name}')"),
                       {"int": ("<obj>.zz", "getattr(<obj>, 'abc', 1)")}, ("LOG.append(<obj>.other)",), ("o.zz = 8", "C0.zz = 9")),  # fmt: skip
    "Getattribute": Feature(("    def __getattribute__(self, name):\n        if name == 'size':\n            LOG.append('size')\n        return super().__getattribute__(name)",), {"int": ("<obj>.size + <obj>.size",)}),
    "Setattr": Feature(("    def __setattr__(self, name, value):\n        LOG.append(('set', name))\n        super().__setattr__(name, value)",
                        "    def __setattr__(self, name, value):\n        if name == 'extra':\n            raise AttributeError('extra')\n        object.__setattr__(self, name, value)",
                        "    def __setattr__(self, name, value):\n        self.__dict__[name] = value"), {}, ("<obj>.extra = <int>",)),  # fmt: skip
    "Delattr": Feature(("    def __delattr__(self, name):\n        LOG.append(('del', name))\n        super().__delattr__(name)",), {}, ("del <obj>.extra", "del <obj>.items")),
    "Context": Feature(("    def __enter__(self):\n        self.size += 1\n        return self\n    def __exit__(self, *error):\n        LOG.append(error[0] is None)\n        <block>",),
                       {}, ("with <obj> as <+obj>:\n    <block>", "with <obj>:\n    <block>")),  # fmt: skip
    "Text": Feature(("    def __repr__(self):\n        return f'C0({self.size})'\n    def __format__(self, spec):\n        return spec + '!'", "    def __str__(self):\n        <block>\n        return 'str'\n    __repr__ = __str__"),
                    {"str": ("str(<obj>)", "f'{<obj>}'", "repr(<obj>)", "f'{<obj>!r}'", "'%s' % <obj>", "f'{<obj>:x}'")}, ("print(<obj>)",)),  # fmt: skip
    "Walk": Feature(("    def walk(self, k):\n        <block>\n        for v in self.items:\n            yield v + k",), {"ints": ("<obj>.walk(<int>)",)}),
    "Match": Feature(("    __match_args__ = ('size', 't')",), {}, ("match <obj>:\n    case C0(1 | 2, _):\n        <block>\n    case C0(m7):\n        <block>",)),
    "Meta": Feature(("    def kind(self):\n        return type(self).label",), {"str": ("C0.label", "<obj>.kind()"), "int": ("len(C0)",), "bool": ("<int> in C0",)}, (), ("Meta.label = 'other'",)),
    "Int": Feature(("    def __index__(self):\n        return self.size % 3\n    def __int__(self):\n        return self.size\n    def __float__(self):\n        return 1.5",),
                   {"int": ("int(<obj>)", "[5, 6, 7][<obj>]", "operator.index(<obj>)"), "float": ("float(<obj>)",)}),
    "Copy": Feature(("    def copied(self):\n        made = type(self).__new__(type(self))\n        made.size, made.t, made.items = self.size, self.t, list(self.items)\n        return made",),
                    {"obj": ("<obj>.copied()", "copy.copy(<obj>)")}),
    "End": Feature(("    def __del__(self):\n        LOG.append('end')",), {}, ("o = None", "LOG.append('here')")),
    "Subclassed": Feature(("    def __init_subclass__(cls, **names):\n        cls.label = cls.__name__\n        super().__init_subclass__(**names)",), {"str": ("getattr(type(<obj>), 'label', 'none')",)}),
    "Generic": Feature(("    def __class_getitem__(cls, item):\n        return cls",), {"obj": ("C0[int](<int>, <tensor>)",)}),
}  # fmt: skip

META = """
class Meta(type):
    label = 'meta'
    def __len__(cls):
        return 4
    def __contains__(cls, k):
        return k > 1
    def __call__(cls, *args, **kwargs):
        LOG.append(('made', cls.__name__))
        return super().__call__(*args, **kwargs)
"""

INIT = """    shared = 1
    def __init__(self, size, t, items=None):
        <size>
        self.t = t
        self.items = [size] if items is None else items"""

NET: dict[str, tuple[str, ...]] = {
    "init": ("self.inner = torch.nn.Linear(3, 3)\n        torch.nn.init.ones_(self.inner.weight)\n        torch.nn.init.zeros_(self.inner.bias)",
             "self.inner = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Identity())", "self.inner = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()])[1]",
             "self.inner = torch.nn.LayerNorm(3)", "self.inner = torch.nn.Dropout(0.5)", "self.inner = torch.nn.ModuleDict({'a': torch.nn.Tanh()})['a']"),
    "forward": ("return self.inner(t) * self.weight[0] + self.mean", "if self.training:\n            self.mean.add_(1)\n        return self.inner(t) + self.weight.sum(0)",
                "self.calls += 1\n        self.last = t\n        return self.inner(t) * self.calls", "for sub in self.children():\n            t = sub(t)\n        return t",
                "self.mean = self.mean + t.detach()\n        return t * self.weight[1]", "<block>\n        return torch.nn.functional.linear(t, self.weight)",
                "<block>\n        return self.inner(t)", "return sum(w.sum() for w in self.parameters()) + t"),
    "setup": ("", "", "mod.register_forward_hook(lambda m, i, out: out * 2)", "mod.register_forward_pre_hook(lambda m, i: (i[0] + 1,))", "mod.inner.register_forward_hook(lambda m, i, out: LOG.append('hook'))",
              "mod.eval()", "mod.weight.requires_grad_(False)", "mod.double().float()"),
    "change": ("mod.eval()", "mod.train()", "mod.weight = torch.nn.Parameter(torch.ones(3, 3))", "mod.calls = 7", "mod.inner = torch.nn.Tanh()", "mod.mean = torch.ones(3)", "mod.mean.fill_(2)",
               "mod.register_forward_hook(lambda m, i, out: out + 1)", "del mod.last", "Net.forward = lambda self, t: t", "mod.forward = lambda t: t * 3", "mod.weight.requires_grad_(False)",
               "mod._forward_hooks.clear()", "mod.other = torch.nn.ReLU()", "mod.weight.data = torch.zeros(3, 3)", "mod = Net()"),
}  # fmt: skip
NET_STATEMENTS = (
    "mod.mean.add_(1)",
    "mod.mean = <tensor>",
    "mod.weight = torch.nn.Parameter(torch.ones(3, 3) * <int>)",
    "mod.calls = <int>",
    "mod.inner = torch.nn.Tanh()",
    "LOG.append([name for name, _ in mod.named_parameters()])",
    "handle = mod.register_forward_hook(lambda m, i, out: out * 2)",
    "LOG.append(sorted(mod.state_dict()))",
    "with torch.no_grad():\n    mod.weight.add_(<int>)",
)
NET_EXPRESSIONS = {
    "tensor": ("mod.mean", "mod.weight[<int>]", "mod(<tensor>)", "mod.inner(<tensor>)", "mod.last"),
    "int": ("mod.calls", "len(list(mod.children()))", "len(list(mod.parameters()))"),
}

CHANGES = (
    "n = n + 1", "n = 0", "n = 5", "flag = not flag", "x = x + 1", "x = x.double()", "x = torch.arange(4.0)", "y = x", "x = x.detach().requires_grad_()", "y = torch.ones(3, 3)[0]",
    "s = 'b'", "s = ''", "items.append(4)", "items.clear()", "items = GL", "items = Stack(items)", "items = tuple(items)", "table['zz'] = 3", "del table['a']", "table = Table(table)", "table.clear()", "tdict['u'] = y",
    "tensors.append(x)", "tensors.reverse()", "tensors[0] = x", "bag.add(7)", "bag.clear()", "queue.append(3)", "queue.clear()", "rec.k = 4", "rec.t = x", "rec.extra = 1", "rec.items = items", "pair = Pair(3, x)", "pair = rec",
    "GI = 3", "GL.append(5)", "GL = [7]", "GD['b'] = 2", "GD = table", "GT = torch.ones(3)", "GT.add_(1)", "helper = lambda k: k - 1", "helper.__defaults__ = (3,)", "helper.__code__ = (lambda k, w=1: k * 3).__code__", "thelper = torch.cos",
    "Rec.grow = lambda self, k=2: k", "Rec.k = 1", "brk = note", "boom = abs", "Manager.__exit__ = lambda self, *error: True", "Custom = KeyError", "Stack.push = lambda self, k: k", "x.requires_grad_(not x.requires_grad)", "x = x.clone()",
    "GT = GT.clone().requires_grad_()", "y = y.half()", "y = y[:1]", "n = True", "n = -1", "flag = 1", "flag = None", "s = 'abc'", "x.tag = 3", "LOG.clear()", "Pair.more = 3", "len = lambda of: 2", "torch.set_grad_enabled(False)", "n = 2.5",
    "counted = lambda k, t=None: [k]", "x = torch.nn.Parameter(torch.ones(3))", "y = torch.tensor([1, 2, 3])",
)  # fmt: skip
"""Changes of parameters, globals and classes between two calls."""
