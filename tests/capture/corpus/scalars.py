"""Numbers, strings, f-strings, builtins on constants, types and introspection."""

from __future__ import annotations

import cmath
import math
import typing

import torch
from capture.harness import ANY, case

X = torch.arange(4.0)


@case(X, 7, 2.5, 1 + 2j, True)
def arithmetic(x, i, f, c, b):
    return (
        x + i, i + f, i - 1, i * f, i / 2, i // 2, i % 3, i**2, -i, +i, ~i, i & 3, i | 8, i ^ 1, i << 2, i >> 1, divmod(i, 3),
        c * 2, c.real, c.imag, c.conjugate(), abs(c), f // 1, f % 1, f**0.5, b + 1, not b, b & False, abs(-i), pow(i, 2, 5),
        -7 // 2, -7 % 3, 7 // -2, 0.1 + 0.2, 1e300 * 1e10, int(f), float(i), complex(i, 1), bool(i), round(f), round(2.567, 2),
    )  # fmt: skip


@case(X, 7)
def augmented(x, n):
    n += 1
    n -= 2
    n *= 3
    n //= 2
    n **= 2
    n %= 50
    n <<= 2
    n >>= 1
    n |= 1
    n &= 0xFF
    n ^= 3
    f = 5.0
    f /= 2
    return x + n + f


@case(X, 3)
def int_methods(x, n):
    return (
        x + n.bit_length(),
        n.to_bytes(2, "big"),
        int.from_bytes(b"\x01", "big"),
        n.real,
        n.numerator,
        (5).__add__(1),
        n.bit_count(),
    )


@case(X, 2.5)
def float_methods(x, f):
    return (
        x + f,
        f.is_integer(),
        f.hex(),
        f.as_integer_ratio(),
        float.fromhex("0x1p3"),
        float("inf") > 1,
        float("nan") != float("nan"),
    )


@case(X)
def math_module(x):
    return (
        x * math.pi, math.sqrt(2), math.floor(2.5), math.ceil(2.1), math.log(2), math.log2(8), math.exp(1), math.sin(1),
        math.isnan(math.nan), math.isinf(math.inf), math.gcd(4, 6), math.factorial(5), math.prod([1, 2, 3]), math.hypot(3, 4),
        math.isclose(1, 1 + 1e-12), math.fsum([0.1] * 3), math.copysign(1, -2), math.trunc(2.7), math.comb(5, 2), math.dist((0, 0), (3, 4)),
        math.atan2(1, 2), math.degrees(1), math.tau, math.e, cmath.sqrt(-1), math.log(8, 2), math.pow(2, 3), math.fabs(-1), math.lcm(2, 3),
        math.frexp(3.0), math.modf(2.5), math.isqrt(17), math.perm(4, 2), math.erf(0.5),
    )  # fmt: skip


@case(X)
def math_errors(x):
    out = []
    for f in (
        lambda: math.sqrt(-1),
        lambda: math.log(0),
        lambda: 1 // 0,
        lambda: 1.0 / 0,
        lambda: int("x"),
        lambda: math.factorial(-1),
    ):
        try:
            f()
        except (ValueError, ZeroDivisionError) as e:
            out.append(str(e))
    return x + 1, out


@case(X, "Hello World", "é")
def string_methods(x, s, u):
    return (
        x + len(s), s.upper(), s.lower(), s.split(), s.split("o"), s.replace("l", "L"), s.find("W"), s.startswith("He"), s[1:4], s[::-1],
        s.strip("Hd"), s.join(["a", "b"]), s.count("l"), s.index("o"), s.title(), s.swapcase(), s.center(15, "*"), s.zfill(13), s.encode(),
        s.partition(" "), s.rpartition("o"), s.isalpha(), "12".isdigit(), s * 2, s + "!", "lo" in s, s == "Hello World", s < "Z", u.encode("utf8"),
        s.removeprefix("Hello "), s.removesuffix("d"), s.casefold(), s.ljust(12, "."), s.rjust(12), s.splitlines(), s.translate({72: "J"}),
        s.format(), "%d-%s" % (1, "a"), "%5.2f" % 2.5, "{0:>5}|{a}|{0!r}".format("z", a=1), "a,b".split(",", 1), ord("a"), chr(98), hex(255),
        bin(5), oct(8), ascii(u), repr(s), s.rfind("o"), s.expandtabs(), "abc".maketrans("a", "b"), "x".join("abc"), s.endswith(("d", "x")),
    )  # fmt: skip


@case(X, 3, 2.5, "s", None)
def f_strings(x, i, f, s, n):
    width = 6
    return (
        x + 1, f"{i}", f"{i:05d}", f"{f:.3f}", f"{f:{width}.1f}", f"{s!r}", f"{s:>{width}}", f"{n}", f"{i + 1}{s}", f"{i=}", f"{s!a}", f"{f:e}",
        f"{i:x}", f"{i:,}", f"{{}}", f"{'nested ' + f'{i}'}", f"{[1, 2]}", f"{ {'a': 1} }", f"{(1,)}", f"{i:>{width}}", f"{True}", f"{i!s:>4}",
        f"{x.shape}", f"{x.dtype}", f"{x.device}", f"{tuple(x.shape)}", f"{list(x.shape)}", f"{type(i).__name__}", f"{len(x):3d}", f"{1_000_000:_}",
    )  # fmt: skip


@case(X)
def f_string_of_tensor(x):
    try:
        return x + 1, f"{x.shape[0]}x{x.dim()}"
    finally:
        pass


@case(X, breaks=ANY)
def f_string_of_tensor_data(x):
    return f"{x}", f"{x.sum():.1f}", str(x + 1)


@case(X)
def string_iteration(x):
    return (
        x + 1,
        [c for c in "abc"],
        {c: i for i, c in enumerate("ab")},
        list(zip("ab", "cd")),
        sorted("cab"),
        max("abc"),
        "a" < "b",
    )


@case(X)
def types_and_instances(x):
    return (
        x + 1, type(1) is int, type("s"), isinstance(1, int), isinstance(True, int), isinstance(1, (str, int)), isinstance(x, torch.Tensor),
        isinstance(None, type(None)), issubclass(bool, int), type(x) is torch.Tensor, isinstance([], list), isinstance(1, int | str),
        isinstance(x, (list, torch.Tensor)), type(x.shape), isinstance(x.shape, tuple), type(x.shape) is torch.Size, callable(len),
        isinstance(x, torch.nn.Parameter), type(None) is type(None), type(lambda: 0).__name__, isinstance(int, type), type(int) is type,
        isinstance("s", typing.Hashable), int.__name__, type(type(x)), isinstance(3.0, (int, float)), type(...), type([]) is list,
    )  # fmt: skip


@case(X)
def hasattr_getattr(x):
    return (
        x + 1, hasattr(x, "shape"), hasattr(x, "nothing"), getattr(x, "dtype"), getattr(x, "nothing", 3), hasattr(1, "real"),
        hasattr([], "append"), getattr([1], "__len__")(), hasattr("s", "zzz"), hasattr(torch, "sin"), hasattr(math, "zzz"),
        getattr(torch, "sin")(x), hasattr(int, "from_bytes"),
    )  # fmt: skip


@case(X)
def builtins_misc(x):
    return (
        x + 1, abs(-3), bin(3), chr(97), divmod(7, 2), hash("a") == hash("a"), hex(10), len("abc"), list("ab"), oct(8), ord("a"), pow(2, 3),
        repr("a"), round(1.5), slice(1, 2), sum([1, 2]), tuple("ab"), frozenset([1]), bytes([1, 2]), complex("1+2j"), int("ff", 16),
        int("0b11", 0), float("1e3"), bool(""), str(5), str(None), ascii("a"), format(3.14159, ".2f"), max(1, 2), ...,
        NotImplemented, __debug__, range(3), set(), dict(), int(), float(), str(), bool(), list(), tuple(), any([]), all([]),
    )  # fmt: skip


@case(X)
def slice_objects(x):
    s = slice(1, 3)
    return (
        x[s],
        [1, 2, 3, 4][s],
        s.start,
        s.stop,
        s.step,
        s.indices(10),
        slice(None, 2),
        x[slice(None, None, 2)],
        s == slice(1, 3),
    )


@case(X, breaks="builtin-call")
def print_breaks(x):
    print("text", len(x))
    return x + 1


@case(X)
def locals_and_globals(x):
    return x + 1, sorted(locals()), "case" in globals()


@case(X, breaks=ANY)
def eval_and_exec(x):
    return x + eval("1 + 2")


@case(X, breaks=ANY)
def input_like(x):
    import sys

    sys.stdout.write("written\n")
    return x + 1


@case(X)
def import_inside(x):
    import math as m
    from collections import OrderedDict
    from os.path import join

    return x + m.floor(2.5), OrderedDict(a=1), join("a", "b")


@case(X, breaks=ANY, recompiles=20)
def import_errors(x):
    try:
        import no_such_module_at_all  # noqa: F401
    except ImportError as e:
        return x + 1, type(e).__name__


@case(X, breaks=ANY)
def import_errors_any(x):
    try:
        from math import nothing_there  # noqa: F401
    except ImportError:
        return x + 1


@case(X)
def chained_comparison(x):
    a, b, c = 1, 2, 3
    return x + 1, a < b < c, a < b > c, a == b == c, 1 < 2 < 3 < 4 > 0, a in (1,) in ((1,),)


@case(X)
def big_ints(x):
    return x + 1, 2**100, (2**100) % 97, -(2**70) >> 3, int(1e18), 10**20 // 3


@case(X)
def special_floats(x):
    nan, inf = float("nan"), float("inf")
    return x * inf, nan, -inf, -0.0, 0.0 == -0.0, inf - inf, min(nan, 1), sorted([2, inf, -inf])


@case(X, float("nan"), -0.0)
def special_float_arguments(x, nan, zero):
    return x + nan, x * zero, nan != nan, math.copysign(1, zero)


@case(X)
def constants_keep_identity(x):
    a = (1, 2)
    b = a
    s = "text"
    return x + 1, a is b, s is s, None is None, 1 is not None, [] is []


@case(X, breaks=ANY)
def typing_helpers(x):
    y: typing.Any = typing.cast(int, 5)
    return x + y, typing.TYPE_CHECKING, typing.Optional[int] == typing.Union[int, None]


@case(X)
def numeric_string_conversions(x):
    return (
        x + 1,
        int(" 42 "),
        float("-1.5e-3"),
        str(1.0),
        str(1e20),
        repr(0.1),
        str(True),
        "%r" % "a",
        str(1j),
        f"{1e-7}",
    )


@case(X)
def ternary_chain(x):
    n = len(x)
    return x + 1, "a" if n < 2 else "b" if n < 4 else "c"


@case(X)
def unpack_string(x):
    a, b = "ab"
    (c,) = [1]
    return x + c, a, b


@case(X, 5)
def bit_tricks(x, n):
    return x + (n & -n) + bin(n).count("1") + (n if n & 1 else 0)


@case(X)
def vars_in_nested_scopes(x):
    def f():
        y = 1

        def g():
            return y + z

        z = 2
        return g()

    return x + f()


@case(X)
def date_like_tuple_sort(x):
    rows = [(2020, 1), (2019, 5)]
    rows.sort()
    return x + rows[0][0], rows


@case(X, 1000, "text", 2.5)
def identity_of_equal_constants(x, n, s, f):
    a = (1, 2)
    same = []
    for _ in range(2):
        same.append((3, 4))
    return x + 1, n is n, n + 0 is 10**3, s is s, f is f, a is a, same[0] is same[1], None is None, (n == 1000) is True


@case(X)
def equality_of_methods_and_views(x):
    class_of = [1].append
    d = {"a": 1}
    items = [1]
    return (
        x + 1,
        d.values() == d.values(),
        d.keys() == d.keys(),
        d.items() == {"a": 1}.items(),
        items.append == class_of,
        len == len,
    )


class Counted:
    def go(self):
        return 1


@case(X, Counted())
def equality_of_bound_methods(x, c):
    other = Counted()
    return x + 1, c.go == c.go, c.go == other.go, c.go is c.go, c.go in [c.go], {c.go.__name__: 1}


@case(X)
def sums_of_floats(x):
    return x + 1, sum([0.1] * 10), sum([1e16, 1, -1e16]), sum((0.1, 0.2), 0.3), sum(range(5)), sum([True, 2.5])
