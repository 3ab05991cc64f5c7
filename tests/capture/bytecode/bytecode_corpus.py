"""Small functions, one for each state in which a frame can be cut.

Each case is a factory of a fresh function, its arguments and a log of side effects: a run can be repeated.
"""

import sys

CASES = {}
counter = 0


def case(factory):
    CASES[factory.__name__] = factory
    return factory


class Manager:
    def __init__(self, log, name, swallow=False):
        self.log, self.name, self.swallow = log, name, swallow

    def __enter__(self):
        self.log.append(("enter", self.name))
        return self

    def __exit__(self, kind, value, trace):
        self.log.append(("exit", self.name, kind and kind.__name__, str(value)))
        return self.swallow


class Bag:
    tag = "class"

    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)

    def add(self, *args, scale=1):
        return sum(args) * scale


@case
def straight():
    def fn(a, b, c=3):
        d = a + b * c
        e = d - a
        return d, e, -d, ~e, not d, a < b <= c, d is e, a in (b, c)

    return fn, (1, 2), []


@case
def for_loop():
    log = []

    def fn(n):
        total = 0
        for i in range(n):
            if i == 2:
                continue
            if i == 5:
                break
            total += i
            log.append(total)
        else:
            log.append("else")
        return total

    return fn, (4,), log


@case
def for_break():
    def fn(n):
        for i in range(n):
            if i == 2:
                break
        else:
            return "none"
        return i

    return fn, (4,), []


@case
def nested_loops():
    def fn(n):
        out = []
        for i in range(n):
            for j in range(i):
                if (i + j) % 3 == 1:
                    continue
                out.append((i, j))
        return out

    return fn, (4,), []


@case
def while_loop():
    log = []

    def fn(n):
        while n > 0:
            n -= 1
            if n == 3:
                continue
            log.append(n)
        else:
            log.append("done")
        while True:
            n += 1
            if n > 2:
                break
        return n

    return fn, (5,), log


@case
def zip_unpack():
    def fn(pairs):
        out = []
        for k, (v, *rest) in enumerate(pairs):
            first, *middle, last = [k, v, *rest, 9]
            out.append((first, middle, last))
        return out

    return fn, ([(1, 2, 3), (4,), (5, 6)],), []


@case
def try_except():
    log = []

    def fn(values):
        for value in values:
            try:
                log.append(10 // value)
            except ZeroDivisionError as error:
                log.append(("zero", str(error), sys.exc_info()[0].__name__))
            except TypeError:
                log.append("type")
                continue
            else:
                log.append("fine")
            finally:
                log.append("finally")
        return sys.exc_info()

    return fn, ([1, 0, "x", 2],), log


@case
def reraise():
    log = []

    def fn(x):
        try:
            try:
                raise KeyError(x)
            except KeyError:
                log.append(sys.exc_info()[1].args)
                raise
            finally:
                log.append("inner")
        except LookupError as error:
            log.append(type(error).__name__)
            raise ValueError("again") from error

    return fn, ("key",), log


@case
def context_chain():
    def fn(x):
        try:
            {}[x]
        except KeyError:
            try:
                int("no")
            except ValueError:
                [][3]

    return fn, (1,), []


@case
def nested_handlers():
    log = []

    def fn():
        try:
            raise KeyError("a")
        except KeyError:
            log.append(repr(sys.exc_info()[1]))
            try:
                raise ValueError("b")
            except ValueError as inner:
                log.append(repr(sys.exc_info()[1]))
                log.append(repr(inner.__context__))
            log.append(repr(sys.exc_info()[1]))
        log.append(repr(sys.exc_info()[1]))
        return "ok"

    return fn, (), log


@case
def return_in_finally():
    def fn(x):
        for i in range(3):
            try:
                if i == x:
                    return "try"
                if i == 2:
                    raise KeyError
            finally:
                if i == 1:
                    return "finally"

    return fn, (5,), []


@case
def finally_raises_through():
    log = []

    def fn(x):
        try:
            log.append("start")
            return 1 // x
        finally:
            log.append("cleanup")
            log.append(sys.exc_info()[0] is not None)

    return fn, (0,), log


@case
def except_loop_continue():
    log = []

    def fn(n):
        out = []
        for i in range(n):
            try:
                if i % 2:
                    raise ValueError(i)
                out.append(i)
            except ValueError as error:
                log.append(error.args)
                continue
            log.append("after")
        return out

    return fn, (5,), log


@case
def handler_deletes_name():
    def fn():
        e = 1
        try:
            raise KeyError
        except KeyError as e:
            pass
        return e

    return fn, (), []


@case
def with_block():
    log = []

    def fn(x):
        with Manager(log, "a") as a, Manager(log, "b"):
            log.append(a.name)
            value = 10 // x
        return value

    return fn, (3,), log


@case
def with_exception():
    log = []

    def fn(x):
        with Manager(log, "outer", swallow=True):
            with Manager(log, "inner"):
                log.append(1 // x)
            log.append("unreached")
        return log[:]

    return fn, (0,), log


@case
def with_return_and_loop():
    log = []

    def fn(n):
        for i in range(n):
            with Manager(log, i):
                if i == 1:
                    continue
                if i == 2:
                    return i
                log.append("body")

    return fn, (4,), log


@case
def with_escaping():
    log = []

    def fn():
        with Manager(log, "m"):
            try:
                raise KeyError("x")
            finally:
                log.append("f")

    return fn, (), log


@case
def closure_cells():
    def fn(a, b):
        total = 0

        def add(x):
            nonlocal total
            total += x + a
            return total

        for i in range(3):
            add(i)
            total *= 2
            a += b
        return total, a, add(1)

    return fn, (1, 2), []


@case
def free_variables():
    state = 5
    log = []

    def fn(x):
        nonlocal state
        state += x
        log.append(state)
        inner = [lambda: state + y for y in range(2)]
        state += 1
        return [f() for f in inner]

    return fn, (2,), log


@case
def cell_deleted():
    def fn(flag):
        value = 3

        def get():
            return value

        before = get()
        if flag:
            del value
        try:
            return before, get()
        except NameError as error:
            return before, str(error)

    return fn, (True,), []


@case
def cell_unbound_then_stored():
    def fn(n):
        def get():
            return later

        try:
            get()
        except NameError:
            later = n
        return get(), later

    return fn, (4,), []


@case
def comprehensions():
    def fn(n):
        k = 2
        squares = [i * i * k for i in range(n) if i % 2]
        pairs = {(i, j) for i in range(3) for j in range(i)}
        table = {i: [j * k for j in range(i)] for i in range(3)}
        lazy = sum(i * k for i in squares)
        return squares, sorted(pairs), table, lazy

    return fn, (5,), []


@case
def comprehension_shadows():
    x = "free"

    def fn(y):
        found = [x for x in range(3)]
        cells = [lambda: z for z in range(3)]
        y = [y for y in [y, y]]
        return x, found, [c() for c in cells], y

    return fn, (7,), []


@case
def comprehension_raises():
    def fn(values):
        v = "kept"
        try:
            return [1 // v for v in values]
        except ZeroDivisionError:
            return v

    return fn, ([1, 0],), []


@case
def nested_comprehension_calls():
    log = []

    def fn(rows):
        return [max([abs(x) for x in row], default=log.append("empty")) for row in rows if row is not None]

    return fn, ([[1, -2], [], None, [3]],), log


@case
def generators_inside():
    log = []

    def fn(n):
        def gen():
            for i in range(n):
                log.append(i)
                yield i

        it = gen()
        first = next(it)
        return first, [x for x in it], list(gen())

    return fn, (3,), log


@case
def iterate_generator():
    log = []

    def numbers(n):
        yield from range(n)
        log.append("end")

    def fn(n):
        total = 0
        for x in numbers(n):
            total += x
        return total

    return fn, (3,), log


@case
def calls():
    def fn(bag, *args, key=2, **kwargs):
        one = bag.add(*args)
        two = bag.add(1, 2, scale=key)
        three = bag.add(*args, 4, scale=3)
        four = max(args, key=lambda v: -v)
        five = "{}-{x}".format(one, x=two)
        six = dict(a=1, **kwargs)
        return one, two, three, four, five, six, print("", end="", sep=str(len(args)))

    return fn, (Bag(), 1, 2, 3), []


@case
def keyword_only():
    def fn(a, /, b, *rest, c, d=4, **more):
        def inner():
            return a, rest, more

        b += c
        return inner(), b, d

    import functools

    return functools.partial(fn, c=1, z=26), (1, 2, 3), []


@case
def nested_call_arguments():
    log = []

    def fn(x):
        def f(*args, **kwargs):
            log.append((args, kwargs))
            return len(args)

        return f(f(x), f(x, y=f()), *[f(1), f(2)], z=x if x > 1 else f(), w=(t := f(3)) + t)

    return fn, (2,), log


@case
def attributes_and_items():
    def fn(bag):
        bag.x = [1, 2, 3]
        bag.x[0] += 5
        bag.x[1:] = [7, 8, 9]
        bag.y = bag.x[1:3]
        bag.x[::2], bag.z = [0, 0], 3
        del bag.x[0], bag.z
        bag.n = getattr(bag, "missing", None)
        return sorted(bag.__dict__.items(), key=str), bag.tag, hasattr(bag, "z")

    return fn, (Bag(),), []


@case
def strings():
    def fn(a, b):
        return f"{a!r:>10}|{b:.3f}|{a}{b}" + "%s" % a + f"{a:{len(b'xyz')}}"

    return fn, ("s", 1.5), []


@case
def boolean_logic():
    log = []

    def fn(a, b):
        def t(x):
            log.append(x)
            return x

        c = (t(a) and t(b)) or t("z")
        d = t(0) or (t(1) if t(b) else t(2))
        e = 1 < t(5) < t(3) < t(9)
        f = not (t(a) and not t(b))
        g = a is None or b is not None
        return c, d, e, f, g, [x for x in (a, b) if x and x is not None]

    return fn, (1, 0), log


@case
def walrus_and_ternary():
    def fn(data):
        out = []
        while (n := len(data)) > 1:
            out.append(n if n % 2 else -n)
            data = data[1:]
        return out, n

    return fn, ([1, 2, 3, 4],), []


@case
def match_statement():
    def fn(items):
        out = []
        for item in items:
            match item:
                case {"k": v, **rest}:
                    out.append(("map", v, rest))
                case [x, y, *others] if x != 0:
                    out.append((x, y, others))
                case Bag(tag=t):
                    out.append(t)
                case "a" | "b" as letter:
                    out.append(letter)
                case None:
                    out.append("none")
                case _:
                    out.append("?")
        return out

    return fn, ([{"k": 1, "z": 2}, [1, 2, 3], [0, 1], Bag(), "b", None, 5],), []


@case
def super_zero():
    class Base:
        def go(self, x):
            return ("base", x)

        @property
        def prop(self):
            return 3

    class Child(Base):
        def go(self, x):
            first = super().go(x)
            parent = super()
            other = self
            inner = [super(Child, self).go(i) for i in (1,)]
            return first, parent.go(x + 1), super().prop, __class__ is type(other), inner

    return Child().go, (4,), []


@case
def super_with_cell_self():
    class Base:
        def go(self):
            return 1

    class Child(Base):
        def go(self):
            def later():
                return self

            one = super().go()
            parent = super()
            return one, parent.go(), later() is self

    return Child().go, (), []


@case
def class_inside():
    def fn(n):
        y = n

        class Local:
            z = y + 1
            w = [y + i for i in range(2)]

            def get(self):
                return self.z, y, __class__.__name__

        y += 1
        return Local().get(), Local.w

    return fn, (3,), []


@case
def decorated_inner():
    log = []

    def fn(n):
        def deco(f):
            log.append(f.__name__)
            return lambda *a, **k: f(*a, **k) + n

        @deco
        def inner(a: int, b=n, *, c: str = "x") -> int:
            return a + b + len(c)

        return inner(1), inner(2, c="yy")

    return fn, (3,), log


@case
def unbound_local():
    log = []

    def fn(flag):
        if flag:
            x = 1
        log.append("before")
        try:
            return x
        except UnboundLocalError as error:
            log.append(str(error))
        del flag
        return flag  # noqa: F821

    return fn, (False,), log


@case
def global_store():
    log = []

    def fn(n):
        global counter
        counter = n
        for _ in range(n):
            counter += 1
        log.append(counter)
        return counter

    return fn, (3,), log


@case
def import_inside():
    def fn(x):
        import os.path as p
        from math import floor as fl
        from math import sqrt

        return p.basename("a/b"), fl(sqrt(x))

    return fn, (17,), []


@case
def assertion():
    def fn(x):
        assert x > 0, f"bad {x}"
        assert x > 5, f"small {x}"
        return x

    return fn, (3,), []


@case
def exception_groups():
    log = []

    def fn():
        try:
            raise ExceptionGroup("g", [KeyError(1), ValueError(2), TypeError(3)])
        except* KeyError as g:
            log.append(len(g.exceptions))
        except* (ValueError, TypeError) as g:
            log.append([type(e).__name__ for e in g.exceptions])
        return "ok"

    return fn, (), log


@case
def exception_group_rest():
    log = []

    def fn():
        try:
            raise ExceptionGroup("g", [KeyError(1), ValueError(2)])
        except* KeyError:
            log.append("key")

    return fn, (), log


@case
def displays():
    def fn(a, b):
        t = (a, *b, a)
        s = {*b, a}
        d = {"k": a, "j": b, a: 1}
        e = {"x": a, "y": b}
        return t, sorted(s), d, e, [*t, *b], t[-1:], t[slice(0, 2)]

    return fn, (1, [2, 3]), []


@case
def frame_inspection():
    def fn(a, b):
        c = a + b
        d = 1
        d = c * d
        seen = sorted(k for k in locals() if k in ("a", "b", "c", "d"))
        return seen, eval("a + c"), d

    return fn, (1, 2), []


@case
def deep_finally():
    log = []

    def fn(n):
        for i in range(n):
            try:
                try:
                    if i == 1:
                        break
                    log.append(i)
                finally:
                    try:
                        raise KeyError(i)
                    except KeyError:
                        log.append("handled")
            finally:
                log.append("outer")
        return i

    return fn, (3,), log


@case
def suppressed_then_raised():
    log = []

    def fn(x):
        try:
            with Manager(log, "s", swallow=True):
                raise ValueError("gone")
            log.append(sys.exc_info()[0])
            x.missing
        except AttributeError as error:
            log.append(error.__context__)
            raise

    return fn, (1,), log


@case
def recursion():
    def fn(n):
        return 1 if n < 2 else n * fn(n - 1)

    return fn, (5,), []


@case
def conditional_import_error():
    def fn():
        try:
            from math import nothing_like_this  # noqa: F401
        except ImportError as error:
            name = error.name
        return name

    return fn, (), []


@case
def many_locals():
    source = "def fn(x):\n" + "".join(f" v{i} = x + {i}\n" for i in range(20)) + " t = 0\n for i in range(3):\n"
    source += "".join(f"  t += v{i} * i\n" for i in range(20)) + " return t\n"
    space = {}
    exec(source, space)
    return space["fn"], (1,), []


@case
def generator_raises_in_loop():
    log = []

    def numbers(n):
        yield from range(n)
        raise KeyError(n)

    def fn(n):
        total = 0
        try:
            for x in numbers(n):
                total += x
        except KeyError as error:
            log.append(error.args)
            try:
                for x in numbers(2):
                    log.append(x)
            finally:
                log.append("end")
        return total

    return fn, (9,), log


@case
def inlined_callees_raise():
    log = []

    class Item:
        def __init__(self, n):
            self.n = n

        @property
        def prop(self):
            if self.n > 6:
                raise AttributeError("prop")
            return self.n

        def __getitem__(self, key):
            if self.n > 6:
                raise IndexError("item")
            return key

    def fail(n, *, key=0):
        if n > 6:
            raise ValueError(n)
        return n

    def fn(items):
        for item in items:
            for step in range(4):
                try:
                    if step == 0:
                        log.append(item.prop)
                    elif step == 1:
                        log.append(item[step if item.n else 0])
                    elif step == 2:
                        log.append(fail(*(item.n,)))
                    else:
                        log.append(fail(item.n, key=step))
                except (AttributeError, LookupError, ValueError) as error:
                    log.append(str(error))
        return len(log)

    return fn, ([Item(n) for n in (0, 1, 2, 3, 7, 8)],), log
