"""The rows of every program: expressions by type, and statements (`grammar.py` defines the holes)."""

from __future__ import annotations

PRELUDE = """
import collections, contextlib, copy, dataclasses, decimal, functools, hashlib, io, itertools, math, operator, random, threading, typing
import torch
import pycompiler

LOG = []

class Custom(ValueError):
    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code

def brk(value):
    pycompiler.graph_break()
    return value

def note(value):
    LOG.append(value)
    return value

@functools.lru_cache(maxsize=2)
def kept(t, k=1, *, o=None):
    LOG.append("kept")
    return t * k

@functools.cache
def held(o, k):
    LOG.append(k)
    return [k, len(LOG)]

def boom(k):
    if k > 1:
        raise Custom("boom", k)
    return k

Pair = collections.namedtuple("Pair", "k t")

@dataclasses.dataclass
class Rec:
    k: int
    t: torch.Tensor
    items: list = dataclasses.field(default_factory=list)

    def grow(self, k=1):
        self.k += k
        self.items.append(k)
        return self.k

class Stack(list):
    def push(self, k):
        self.append(k)
        return len(self)

class Table(dict):
    def __missing__(self, key):
        LOG.append(("missing", key))
        return 7

class Loaded(list):
    def __init__(self, values=(), note=None):
        super().__init__(values)
        self.note = note

    def append(self, k):
        self.note = k
        super().append(k)

class Filed(collections.OrderedDict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.count = len(self)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.last = key

class Manager:
    def __init__(self, name, swallow=False):
        self.name, self.swallow = name, swallow

    def __enter__(self):
        LOG.append(("enter", self.name))
        return len(LOG)

    def __exit__(self, kind, value, trace):
        LOG.append(("exit", self.name, kind and kind.__name__))
        return self.swallow

@contextlib.contextmanager
def managed(k):
    LOG.append("in")
    try:
        yield k
    finally:
        LOG.append("out")

def deco(fn):
    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        LOG.append(fn.__name__)
        return fn(*args, **kwargs)
    return wrapped

def counted(k, t=None):
    for i in range(k % 4):
        yield i + (0 if t is None else t.shape[0])

GI = 2
GL = [1, 2]
GD = {"a": 1}
GT = torch.tensor([0.5, -1.0, 2.0])
"""
"""The beginning of every program: its own copy of all objects that it may change."""

LITERALS = {
    "int": ("0", "1", "2", "3", "GI"), "float": ("0.5", "2.0"), "bool": ("flag", "True", "False"), "str": ("'a'", "'b'", "s"),
    "tensor": ("x", "y", "GT"), "scalar": ("x.sum()", "y.mean()", "GT.max()"), "list": ("[1, 2]", "GL", "items"),
    "tensors": ("tensors", "[x, y]"), "dict": ("table", "{'a': 2, 'c': 0}", "GD"), "tdict": ("tdict", "{'u': x}"),
    "set": ("bag", "{1, 2}"), "queue": ("queue",), "pair": ("pair",), "rec": ("rec",), "obj": ("o", "p"),
    "objs": ("[o, p]", "(o, o)"), "mod": ("mod",), "fn": ("helper", "abs"), "tfn": ("thelper", "torch.sin"),
    "ints": ("range(3)", "items", "(2, 1)"), "error": ("ValueError", "KeyError", "Custom", "TypeError", "Exception"),
    "any": ("<int>", "<tensor>", "<str>"), "buf": ("io.StringIO()", "io.StringIO('ab')"), "raw": ("bytearray(b'ab')", "bytearray(3)"),
    "rng": ("random.Random(3)", "random.Random('s')"), "dec": ("decimal.Decimal('1.5')", "decimal.Decimal(2)"), "cls": ("Rec", "C0"),
}  # fmt: skip
"""Expressions used where no other variable is known, with the parameters of the program."""

EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "int": (
        "<int> + <int>", "<int> - <int>", "(<int> * <int>) % 7", "<int> // 2", "-<int>", "<int> % 3", "max(<int>, <int>)",
        "min(<ints>, default=4)", "(<int> if <bool> else <int>)", "(<int> or <int>)", "len(<list>)", "sum(<list>)",
        "len(<tensors>)", "len(<dict>)", "len(<str>)", "<list>[<int>]", "<list>[-1]", "<dict>['a']", "<dict>.get(<str>, <int>)",
        "sum(<int|v:int> for v in <ints>)", "<tensor>.shape[0]", "<tensor>.dim()", "<tensor>.numel()", "len(<tensor>)",
        "<fn>(<int>)", "<fn>(<int>)", "(lambda v: <int|v:int>)(<int>)", "brk(<int>)", "note(<int>)", "boom(<int>)",
        "int(<scalar>.item() > 1)", "<pair>.k", "<pair>[0]", "<rec>.k", "<rec>.grow(<int>)", "<rec>.grow()", "len(<rec>.items)",
        "next(iter(<ints>), <int>)", "next((v for v in <ints> if <bool|v:int>), <int>)", "functools.reduce(operator.add, <ints>, 0)",
        "<list>.count(<int>)", "<list>.index(<int>)", "len(<set>)", "len(set(<ints>))", "<queue>[0]", "len(<queue>)", "<str>.count('a')",
        "ord(<str>[0])", "int(<bool>)", "divmod(<int>, 3)[1]", "functools.partial(<fn>, <int>)()", "sorted(<ints>)[-1]", "hash(<int>)",
        "sum(map(<fn>, <ints>))", "len(list(zip(<ints>, <ints>)))", "math.floor(<float>)", "[<int>, <int>, 5][<int>]",
        "GD.setdefault(<str>, <int>)", "operator.itemgetter(0)(<list>)", "getattr(<rec>, 'k')", "getattr(<rec>, 'zz', <int>)",
        "Table({'a': <int>})[<str>]", "Stack(<ints>).push(<int>)", "sum(1 for u in <tensors> if u is <tensor>)", "<list>.pop()",
        "queue.popleft()", "<dict>.pop(<str>, <int>)", "(walrus := <int>)", "(id(rec) - id(o) and 1)", "GL.__len__()", "bag.pop()",
        "sum(v for v, _ in enumerate(<tensors>))", "<int> ^ <int>", "<int> & 3", "abs(<int>)", "pow(<int>, 2) % 5", "round(<float>)",
        "len(<any>.__class__.__name__)", "any(<bool|v:int> for v in <ints>) + 0", "rec.items[0]", "Rec(<int>, <tensor>).grow()",
        "dataclasses.replace(<rec>, k=<int>).k", "<pair>._replace(k=<int>).k", "collections.Counter(<ints>)[<int>]",
        "sum(itertools.chain(<ints>, <ints>))", "list(itertools.accumulate(<ints>))[-1]", "itertools.islice(<ints>, 2).__next__()",
        "<scalar>.dim()", "int('1' + <str>)", "{<int>: 1, <int>: 2}.get(<int>, 0)", "<tensor>.size(<int>)", "len(LOG)", "len(x.shape)",
        "vars(<rec>)['k']", "(<tensor>, <int>)[1]", "max(<list>, key=lambda v: <int|v:int>)",
        "<buf>.write(<str>)", "<buf>.tell()", "len(<buf>.getvalue())", "<raw>[0]", "len(<raw>)", "sum(<raw>)", "<raw>.find(98)", "<rng>.randint(0, 5)", "<rng>.choice(<list>)", "int(<dec>)",
        "hashlib.md5(<str>.encode()).digest()[0]", "<rng>.randrange(1, 4)", "round(<dec>)", "<cls>.shared", "getattr(<cls>, 'added', <int>)",
        "held(<obj>, <int>)[0]", "len(held(o, <int>))", "kept.cache_info().misses",
    ),
    "float": ("<float> + <int>", "<float> * 0.5", "<scalar>.item()", "math.sqrt(abs(<float>))", "float(<int>)", "<int> / 2", "float(<scalar>)",
              "brk(<float>)", "(<float> if <bool> else <float>)", "-<float>", "sum([<float>, <float>])"),
    "bool": (
        "not <bool>", "<int> > <int>", "<int> == <int>", "<int> in <list>", "<int> in <set>", "<str> in <dict>", "<scalar> > <int>",
        "<bool> and <bool>", "<bool> or <bool>", "<list> == <list>", "<str> == <str>", "isinstance(<any>, int)", "brk(<bool>)",
        "<tensor> is <tensor>", "<rec>.t is <tensor>", "<list> is <list>", "bool(<list>)", "<int> < <int> < 4", "all(<bool|v:int> for v in <ints>)",
        "<tensor>.requires_grad", "<rec> == <rec>", "<pair> is <pair>", "callable(<any>)", "<str>.startswith('a')", "<mod>.training", "<dict> is GD",
        "hasattr(<rec>, <str>)", "any(u is <tensor> for u in <tensors>)", "<set> <= <set>", "<any> is None", "isinstance(<any>, torch.Tensor)",
        "<tensor>.is_leaf", "<tensor>.grad_fn is None", "<tensor>.grad is None", "torch.is_grad_enabled()", "<tensor>.dtype == torch.float32",
        "torch.equal(<tensor>, <tensor>)", "<float> > <int>", "<dec> > <int>", "<dec> == <dec>", "<raw> == <raw>", "98 in <raw>", "<buf>.closed", "<buf> is <buf>", "<fn> is <fn>", "type(<any>) is int", "bool(<scalar> > 0)", "<dict> == <dict>",
    ),
    "str": ("<str> + <str>", "f'{<int>}'", "f'{<str>}-{<int>:>3}'", "str(<int>)", "<str>.upper()", "<str> * 2", "'{}'.format(<int>)", "<str>[:1]",
            "(<str> if <bool> else <str>)", "brk(<str>)", "','.join(str(v) for v in <ints>)", "next(iter(<dict>), 'n')", "repr(<int>)", "type(<any>).__name__",
            "'%d %s' % (<int>, <str>)", "<str>.replace('a', <str>)", "list(<dict>)[0]", "<fn>.__name__", "repr(<list>)", "str(<tensor>.dtype)", "f'{<bool>}'",
            "max(<dict>, default='z')", "<str>.strip('a')", "repr(<pair>.k)", "f'{<float>:.2f}'", "<buf>.getvalue()", "<buf>.readline()", "str(<dec>)", "f'{<dec>:.2f}'", "<raw>.decode()", "repr(<raw>)", "<cls>.__name__", "<rng>.choice('abc')",
            "hashlib.sha1(bytes(<raw>)).hexdigest()[:4]"),
    "tensor": (
        "<tensor> + <tensor>", "<tensor> * <tensor>", "<tensor> - <int>", "<tensor> * <float>", "<tensor>.sin()", "torch.relu(<tensor>)", "<tensor> / 2",
        "<int> - <tensor>", "torch.where(<tensor> > 0, <tensor>, <tensor>)", "(<tensor> if <bool> else <tensor>)", "torch.stack(<tensors>).sum(0)",
        "<tensor> * <scalar>", "<tensor>.detach()", "brk(<tensor>)", "<mod>(<tensor>)", "<tfn>(<tensor>)", "<pair>.t", "<rec>.t", "<tensors>[0]",
        "<tensors>[<int>]", "<tdict>['u']", "sum(<tensors>)", "sum([<tensor|v:int> for v in <ints>], <tensor>)", "functools.reduce(torch.add, <tensors>)",
        "(lambda u: <tensor|u:tensor>)(<tensor>)", "<tensor>.clone()", "<tensor>.abs()", "-<tensor>", "<tensor> @ torch.eye(3)", "<tensor>.flip(0)",
        "torch.cat([<tensor>, <tensor>])[:3]", "<tensor>.view(-1)", "<tensor>[[2, 0, 1]]", "<tensor>.mul_(2)", "<tensor>.add_(<tensor>)", "<tensor>.double().float()",
        "<tensor>[<tensor> > 0].sum() + <tensor>", "max(<tensors>, key=lambda u: <int|u:tensor>)", "<tensor>.unsqueeze(0).expand(2, -1)[<int> % 2]",
        "torch.zeros(3)", "torch.tensor([<int>, 1.0, 2.0])", "torch.tensor(<float>) + <tensor>", "torch.full((3,), <int>) + <tensor>", "mod.weight[0]",
        "functools.partial(torch.add, <tensor>)(<tensor>)", "Pair(<int>, <tensor>).t", "Rec(<int>, <tensor>).t", "next(iter(<tensors>))", "<tensors>.pop()",
        "torch.arange(3) + <tensor>", "torch.cumsum(<tensor>, 0)", "<tensor>.reshape(3)", "<tensor>.to(torch.float64).to(<tensor>.dtype)", "<tensor>.clamp(min=<int>)",
        "tdict.get(<str>, <tensor>)", "torch.nn.functional.gelu(<tensor>)", "<tensor>.softmax(0)", "<tensor>[:<int>].sum() + <tensor>", "<tensor>.T",
        "<tensor>.contiguous()", "torch.ones_like(<tensor>)", "<tensor> ** 2", "<tensor>.masked_fill(<tensor> < 0, <int>)", "<tensor>.numpy() + <tensor>",
        "x", "y", "torch.rand(3)", "kept(<tensor>)", "kept(<tensor>, <int>)", "kept(<tensor>, o=<obj>)", "kept(x)",
    ),
    "scalar": ("<tensor>.sum()", "<tensor>.mean()", "<tensor>.max()", "<tensor>[0]", "<scalar> + <int>", "<scalar> * <scalar>", "torch.tensor(<int>)",
               "sum(<tensor>)", "<tensor>.norm()", "brk(<scalar>)", "torch.dot(<tensor>, <tensor>)", "<tensor>.prod()"),
    "list": (
        "[<int>, <int>]", "[*<list>, <int>]", "[<int|v:int> for v in <ints>]", "[v for v in <ints> if <bool|v:int>]", "list(<ints>)", "<list>[:2]", "<list>[::-1]",
        "<list> + <list>", "sorted(<ints>)", "(<list> if <bool> else <list>)", "list(map(<fn>, <ints>))", "brk(<list>)", "list(filter(None, <ints>))", "<rec>.items",
        "list(<dict>.values())", "[<int|v:int|w:int> for v in <ints> for w in (0, 1)][:4]", "list(range(<int> % 4))", "<list>.copy()", "list(<set>)", "list(<queue>)",
        "copy.copy(<list>)", "Stack(<ints>)", "Loaded(<list>, <int>)", "Loaded(v for v in <ints>)", "[v + w for v, w in zip(<ints>, <ints>)]", "sorted(<ints>, key=<fn>)", "[[v, <int>][0] for v in <ints>]", "(<list> or <list>)",
        "sorted(<ints>, reverse=<bool>)", "[*counted(<int>)]", "[(lambda: v)() for v in <ints>]", "[<int>] * 2",
    ),
    "ints": ("range(<int> % 4)", "<list>", "(<int>, <int>)", "(<int|v:int> for v in <ints>)", "<dict>.values()", "map(<fn>, <list>)", "reversed(<list>)", "counted(<int>)",
             "counted(<int>, <tensor>)", "<list>[1:]", "(v for v in <list> if <bool|v:int>)", "<queue>", "set(<list>)", "itertools.chain(<list>, <list>)", "iter(<list>)",
             "[brk(v) for v in <list>]", "(brk(v) for v in <list>)", "<tensor>.shape", "filter(<fn>, <list>)", "itertools.takewhile(lambda v: <bool|v:int>, <list>)", "<set>"),
    "tensors": ("[<tensor>, <tensor>]", "[u * <int|u:tensor> for u in <tensors>]", "[<tensor|u:tensor> for u in <tensors>]", "list(<tdict>.values())", "<tensors>[:2]",
                "[*<tensors>, <tensor>]", "list(map(<tfn>, <tensors>))", "[u for u in <tensors> if <bool|u:tensor>] or [x]", "<tensors> + [<tensor>]", "list(<tensor>.split(3))",
                "[<tensor>] * 2", "<tensors>[::-1]", "list(torch.stack(<tensors>).unbind(0))"),
    "dict": ("{'a': <int>, 'b': <int>}", "{**<dict>, 'a': <int>}", "{str(v): <int|v:int> for v in <ints>}", "dict(<dict>)", "<dict>.copy()", "dict(a=<int>)",
             "{k: v for k, v in <dict>.items() if <bool|v:int>}", "<dict> | <dict>", "dict(zip(<str>, <ints>))", "(<dict> if <bool> else <dict>)", "Table(<dict>)", "Table(a=<int>)", "Filed(<dict>)", "Filed(a=<int>)", "Filed(enumerate(<ints>))",
             "collections.OrderedDict(<dict>)", "collections.defaultdict(int, <dict>)", "dict.fromkeys(<str>, <int>)", "collections.Counter(<str>)"),
    "tdict": ("{'u': <tensor>, 'v': <tensor>}", "{**<tdict>, 'u': <tensor>}", "{name: <tensor|u:tensor> for name, u in <tdict>.items()}", "dict(u=<tensor>)", "<tdict>.copy()"),
    "set": ("{<int>, <int>}", "set(<ints>)", "{<int|v:int> for v in <ints>}", "<set> | <set>", "<set> & <set>", "frozenset(<ints>)", "<set> - <set>", "<set>.copy()", "<set> ^ {<int>}"),
    "queue": ("collections.deque(<ints>)", "collections.deque(<ints>, maxlen=2)", "queue.copy()"),
    "pair": ("Pair(<int>, <tensor>)", "<pair>._replace(t=<tensor>)", "(<pair> if <bool> else <pair>)", "Pair(*<pair>)", "Pair(t=<tensor>, k=<int>)", "brk(<pair>)"),
    "rec": ("Rec(<int>, <tensor>)", "Rec(<int>, <tensor>, <list>)", "dataclasses.replace(<rec>, k=<int>)", "(<rec> if <bool> else <rec>)", "brk(<rec>)", "copy.copy(<rec>)"),
    "obj": ("C0(<int>, <tensor>)", "(<obj> if <bool> else <obj>)", "brk(<obj>)", "(lambda: <obj>)()", "<objs>[<int> % 2]"),
    "objs": ("[<obj>, <obj>]", "[C0(v, <tensor>) for v in <ints>] or [o]", "(<obj>, <obj>)"),
    "mod": ("(<mod> if <bool> else <mod>)", "mod"),
    "fn": ("(lambda v: <int|v:int>)", "functools.partial(max, <int>)", "(<fn> if <bool> else <fn>)", "rec.grow", "deco(<fn>)", "brk(<fn>)", "operator.neg", "[<fn>, <fn>][<int> % 2]",
           "(lambda v, w=<int>: v + w)", "GL.count"),
    "tfn": ("(lambda u: <tensor|u:tensor>)", "functools.partial(torch.mul, <tensor>)", "(<tfn> if <bool> else <tfn>)", "mod", "torch.nn.ReLU()", "deco(<tfn>)", "<tensor>.mul", "torch.cos"),
    "any": ("<int>", "<tensor>", "<str>", "<list>", "<dict>", "<obj>", "<float>", "<bool>", "<fn>", "<rec>", "<pair>", "None", "<set>", "<tensors>", "<scalar>", "<tdict>", "<mod>",
            "(<int>, <any>)", "[<any>]", "{'r': <any>}", "Rec", "C0", "(v for v in <ints>)", "iter(<list>)", "slice(<int>)", "range(<int>)", "<queue>", "zip(<ints>, <str>)", "<objs>", "int"),
    "buf": ("(<buf> if <bool> else <buf>)", "io.StringIO(<str>)", "brk(<buf>)"),
    "raw": ("<raw> + b'c'", "bytearray(<str>.encode())", "<raw>[:<int>]", "<raw>.copy()", "(<raw> or <raw>)", "brk(<raw>)"),
    "rng": ("random.Random(<int>)", "(<rng> if <bool> else <rng>)"),
    "dec": ("<dec> + <int>", "<dec> * <dec>", "<dec> / 3", "-<dec>", "decimal.Decimal(<int>)", "decimal.Decimal(<str>)", "max(<dec>, <dec>)", "<dec>.quantize(decimal.Decimal('0.1'))", "brk(<dec>)"),
    "cls": ("(<cls> if <bool> else <cls>)", "type(<obj>)"),
    "error": ("(ValueError, KeyError)", "(TypeError, IndexError)", "ZeroDivisionError", "AttributeError", "LookupError", "RuntimeError"),
}  # fmt: skip

_SIMPLE = """
<=int> = <int>
<=int> = <int>
<=tensor> = <tensor>
<=tensor> = <tensor>
<=tensor> = <tensor>
<=list> = <list>
<=dict> = <dict>
<=obj> = <obj>
<=tensors> = <tensors>
<=str> = <str>
<=bool> = <bool>
<=float> = <float>
<=set> = <set>
<=fn> = <fn>
<=tfn> = <tfn>
<=pair> = <pair>
<=rec> = <rec>
<=queue> = <queue>
<=tdict> = <tdict>
<=objs> = <objs>
<=ints> = <ints>
<=scalar> = <scalar>
<=buf> = <buf>
<=raw> = <raw>
<=rng> = <rng>
<=dec> = <dec>
<=cls> = <cls>
<buf>.write(<str>)
print(<int>, <str>, file=<buf>, end=<str>)
<buf>.seek(0)
<buf>.close()
LOG.append(<buf>)
LOG.append(<buf>.read())
LOG.append([*<buf>])
<raw>.append(<int>)
<raw>.extend(<ints>)
<raw>[0] = <int>
<raw> += b'z'
del <raw>[<int>]
LOG.append(<raw>)
LOG.append(<dec>)
LOG.append(<rng>.random())
<rng>.shuffle(<list>)
<rng>.shuffle(<tensors>)
LOG.append(<rng>)
<cls>.added = <int>
LOG.append(<cls>)
<=int>, <=tensor> = <pair>
<=int>, *<=list> = <list>
<=tensor>, *<=tensors> = <tensors>
<=int> = <=float> = <int>
LOG.append(<any>)
LOG.append(<int>)
print(<int>)
print(<str>, <list>)
print('t', <tensor>.shape)
items.append(<int>)
<list>.append(<int>)
<list>.insert(0, <int>)
<list>.extend([*<ints>][:3])
<list>.sort()
<list>.reverse()
<list>[0] = <int>
<list>[<int>] = <int>
<list>[1:] = <ints>
del <list>[0]
<list>.remove(<int>)
<list>.clear()
tensors.append(<tensor>)
tensors[0] = <tensor>
table['a'] = <int>
table[<str>] = <int>
table['a'] += <int>
del table['a']
table.update(<dict>)
table.clear()
<dict>.update(c=<int>)
tdict['u'] = <tensor>
tdict['v'] = <tensor>
bag.add(<int>)
bag.discard(<int>)
bag.update(<ints>)
bag |= <set>
bag.remove(<int>)
queue.append(<int>)
queue.appendleft(<int>)
queue.rotate(1)
queue.extend([*<ints>][:3])
<rec>.k = <int>
<rec>.t = <tensor>
<rec>.items = <list>
<rec>.k += <int>
<rec>.extra = <any>
del rec.extra
setattr(<rec>, 'k', <int>)
GL.append(<int>)
GD['a'] = <int>
GD[<str>] = <int>
LOG.append(GI)
mod.calls += 1
mod.last = <tensor>
x.add_(<int>)
<tensor>.mul_(<int>)
<tensor>[0] = <int>
<tensor>[<int>] = <scalar>
x += <int>
y = y * <tensor>
<tensor>.tag = <int>
pycompiler.graph_break()
pycompiler.graph_break()
brk(None)
LOG.append(<scalar>.item())
LOG.append(<tensor>.tolist())
return <returned>
if <bool>: return <returned>
break
if <bool>: break
continue
if <bool>: continue
raise
raise <error>
raise Custom('c', <int>) from e
raise ValueError(<str>)
if <bool>: raise Custom(<str>)
assert <bool>, <str>
assert <bool>
yield <int>
yield <int>
yield from <ints>
LOG.append((yield <int>))
<=int> = yield
del <any>.zz
mod.train(<bool>)
mod.eval()
LOG.append(torch.is_grad_enabled())
torch.set_grad_enabled(<bool>)
LOG.extend([*<ints>])
LOG.append(sum(u.sum() for u in <tensors>))
x.requires_grad_(<bool>)
<scalar>.backward()
mod.zero_grad()
LOG.append([u.grad for u in mod.parameters()])
LOG.append(<any> is <any>)
LOG.append(list(<ints>))
LOG.append(dict(<dict>))
LOG.append(locals().get('i'))
helper.tag = <int>
C0.shared = <int>
LOG.append(type(<obj>).__name__)
LOG.append(copy.deepcopy(<list>))
<list> += [*<ints>][:3]
next(<ints>)
"""
_COMPOUND = """
if <bool>:
    <block>

if <bool>:
    <block>
else:
    <block>

if <bool>:
    <block>
elif <bool>:
    <block>
else:
    <block>

if <scalar> > <int>:
    <block>
else:
    <block>

for <+int> in <ints>:
    <block>

for <+int> in <ints>:
    <block>
else:
    <block>

for <+int>, <+tensor> in enumerate(<tensors>):
    <block>

for <+str>, <+int> in <dict>.items():
    <block>

for <+str>, <+tensor> in <tdict>.items():
    <block>

for <+tensor> in <tensors>:
    <block>

for <+int>, <+int> in zip(<ints>, <ints>):
    <block>

for <+obj> in <objs>:
    <block>

for <+scalar> in <tensor>:
    <block>

<new:n> = 0
while <new:n> < 3:
    <new:n> += 1
    <block>

<new:n> = 0
while <new:n> < 2 and <bool>:
    <new:n> += 1
    <block>
else:
    <block>

try:
    <block>
except <error> as e:
    LOG.append((type(e).__name__, str(e)))
    <block>

try:
    <block>
except <error>:
    <block>

try:
    <block>
except <error> as e:
    <block>
except Exception as e:
    LOG.append(repr(e))
    <block>
else:
    <block>

try:
    <block>
finally:
    <block>

try:
    <block>
except Exception as e:
    LOG.append((type(e).__name__, e.args, type(e.__context__).__name__, type(e.__cause__).__name__))
finally:
    <block>

with Manager(<str>, <bool>) as <+int>:
    <block>

with managed(<int>) as <+int>, Manager('m'):
    <block>

with torch.no_grad():
    <block>

with contextlib.suppress(<error>):
    <block>

with torch.enable_grad():
    <block>

with contextlib.ExitStack() as stack:
    stack.enter_context(Manager(<str>))
    stack.callback(LOG.append, <int>)
    <block>

match <any>:
    case 0 | 1:
        <block>
    case [m0, *m1]:
        <block>
    case {'a': m2, **m3}:
        <block>
    case Rec(k=m4):
        <block>
    case _:
        <block>

match <int>, <bool>:
    case 0, _:
        <block>
    case k1, True if <bool|k1:int>:
        <block>

match <obj>:
    case C0(size=m5) if <bool|m5:int>:
        <block>
    case object(t=m6):
        <block>

def <new:f>(k):
    <block>
    return <int|k:int>
<=int> = <new:f>(<int>)

def <new:f>(k, w=<int>, *more, **names):
    <block>
    return <int|k:int|w:int>
<=int> = <new:f>(<int>, *<list>, z=<int>)

def <new:g>(t):
    <block>
    return <tensor|t:tensor>
<=tensor> = <new:g>(<tensor>)

<new:n> = <int>
def <new:f>(k):
    nonlocal <new:n>
    <block>
    <new:n> += k
    return <int|k:int>
<new:f>(<int>)
<=int> = <new:f>(<int>) + <new:n>

def <new:f>(k):
    if k > 3:
        return k
    <block>
    return <new:f>(abs(k) + 1) + 1
<=int> = <new:f>(<int>)

@functools.cache
def <new:f>(k):
    <block>
    return k + 1
<=int> = <new:f>(<int>) + <new:f>(<int>)

def <new:gen>(k):
    <block>
    yield <int|k:int>
<=list> = list(<new:gen>(<int>))

def <new:gen>(k, t):
    yield k
    <block>
    yield <int|k:int>
<=ints> = <new:gen>(<int>, <tensor>)
<=int> = next(<ints>, <int>)

def <new:gen>(k):
    try:
        <block>
        yield k
        <block>
    finally:
        LOG.append('closed')
for <+int> in <new:gen>(<int>):
    <block>

def <new:gen>(k):
    while k < 3:
        k = k + ((yield k) or 1)
<new:it> = <new:gen>(<int>)
LOG.append(next(<new:it>, None))
<block>
with contextlib.suppress(StopIteration):
    LOG.append(<new:it>.send(<int>))
    <new:it>.close()

<new:fs> = [lambda k, v=v: k + v for v in <ints>]
<block>
<=list> = [<new:h>(<int>) for <new:h> in <new:fs>]

class <new:K>:
    size = <int>
    def double(self, k):
        <block>
        return self.size + k
<=int> = <new:K>().double(<int>)

class <new:K>(C0):
    added = <int>
    def double(self, k):
        <block>
        return self.added + k
<=obj> = <new:K>(<int>, <tensor>)
<=cls> = <new:K>
<=int> = <obj>.added

class <new:M>(type):
    def __new__(mcs, name, bases, names, **more):
        LOG.append(name)
        <block>
        made = super().__new__(mcs, name, bases, names)
        made.added = <int>
        return made
    def __len__(cls):
        return cls.added
class <new:K>(metaclass=<new:M>):
    shared = <int>
<=cls> = <new:K>
<=int> = len(<new:K>)

class <new:B>:
    known = []
    def __init_subclass__(cls, by=<int>, **more):
        super().__init_subclass__(**more)
        cls.added = by
        <block>
        <new:B>.known.append(cls)
class <new:K>(<new:B>, by=<int>):
    shared = <int>
class <new:L>(<new:K>):
    pass
<=int> = sum(c.added for c in <new:B>.known)
<=cls> = <new:B>.known[<int>]

class <new:D>:
    def __set_name__(self, owner, name):
        <block>
        self.name = '_' + name
        LOG.append((owner.__name__, name))
    def __get__(self, made, owner=None):
        return self if made is None else made.__dict__.get(self.name, <int>)
    def __set__(self, made, value):
        made.__dict__[self.name] = value * 2
class <new:K>:
    shared = first = <new:D>()
    second = <new:D>()
    def __init__(self, k):
        self.first = k
<=int> = <new:K>(<int>).first + <new:K>(<int>).second

<new:lock> = threading.Lock()
with <new:lock>:
    <block>
LOG.append(<new:lock>.locked())

@dataclasses.dataclass(slots=<bool>, order=True)
class <new:K>:
    k: int
    w: int = <int>
<=int> = max(<new:K>(<int>), <new:K>(<int>)).w

def <new:f>(k):
    global GI
    GI = <int>
    <block>
    return GI
<=int> = <new:f>(<int>)
"""


def statements() -> list[str]:
    """All rows of statements."""
    return [*filter(None, _SIMPLE.splitlines()), *filter(None, (row.strip("\n") for row in _COMPOUND.split("\n\n")))]
