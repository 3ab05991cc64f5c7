"""Exceptions, with statements, match, assertions, conditional expressions."""

from __future__ import annotations

import contextlib
import dataclasses

import torch
from capture.harness import ANY, case

X = torch.arange(4.0)


class MyError(Exception):
    def __init__(self, code, text="t"):
        super().__init__(code, text)
        self.code = code


class Plain(Exception):
    pass


class Sub(Plain, ValueError):
    pass


@case(X)
def try_except(x):
    try:
        raise ValueError("v", 2)
    except ValueError as e:
        return x + 1, e.args, str(e), repr(e)


@case(X)
def try_order(x):
    log = []
    for kind in (ValueError, KeyError, Plain, Sub, None):
        try:
            if kind:
                raise kind
        except (KeyError, IndexError):
            log.append("lookup")
        except ValueError:
            log.append("value")
        except Exception as e:
            log.append(type(e).__name__)
        else:
            log.append("else")
        finally:
            log.append("finally")
    return x + 1, log


@case(X)
def try_finally_return(x):
    log = []

    def f():
        try:
            return x + 1
        finally:
            log.append("f")

    def g():
        for i in range(3):
            try:
                if i == 1:
                    break
                continue
            finally:
                log.append(i)
        return i

    def h():
        try:
            raise ValueError
        finally:
            return "swallowed"

    return f(), g(), h(), log


@case(X)
def nested_try(x):
    log = []
    try:
        try:
            raise KeyError("k")
        except ValueError:
            log.append("no")
        finally:
            log.append("inner finally")
    except KeyError as e:
        log.append(e.args)
    return x + 1, log


@case(X)
def exception_from_callee(x):
    def f(n):
        if n == 0:
            raise MyError(7, text="zero")
        return f(n - 1)

    try:
        f(3)
    except MyError as e:
        return x + e.code, e.args, isinstance(e, Exception)


@case(X)
def reraise(x):
    log = []
    try:
        try:
            raise Plain("a")
        except Plain as e:
            log.append(1)
            raise
    except Plain as e:
        log.append(e.args)
    try:
        try:
            raise Plain("b")
        except Plain as e:
            raise e
    except Plain as e:
        log.append(e.args)
    return x + 1, log


@case(X)
def raise_from(x):
    try:
        try:
            {}["k"]
        except KeyError as e:
            raise MyError(3) from e
    except MyError as e:
        return (
            x + e.code,
            type(e.__cause__).__name__,
            e.__cause__.args,
            type(e.__context__).__name__,
            e.__suppress_context__,
        )


@case(X)
def raise_from_none(x):
    try:
        try:
            raise KeyError(1)
        except KeyError:
            raise ValueError(2) from None
    except ValueError as e:
        return x + 1, e.__cause__, e.__suppress_context__, type(e.__context__).__name__


@case(X)
def implicit_context(x):
    try:
        try:
            raise KeyError(1)
        except KeyError:
            raise ValueError(2)
    except ValueError as e:
        return x + 1, type(e.__context__).__name__, e.__context__.args, e.__cause__


@case(X)
def exception_object_values(x):
    e = MyError(5)
    e.extra = x
    e.add_note("note")
    return e.extra + e.code, e.args, e.__notes__


@case(X)
def exception_returned(x):
    try:
        raise MyError(1)
    except MyError as e:
        kept = e
    return kept.code, x + 1, isinstance(kept, MyError)


@case(X)
def exception_variable_is_deleted(x):
    e = 1
    try:
        raise ValueError
    except ValueError as e:
        pass
    try:
        return e
    except UnboundLocalError:
        return x + 1


@case(X, breaks="uncaught-exception")
def uncaught(x):
    y = x + 1
    raise MyError(3, text=str(len(y)))


@case(X, breaks="uncaught-exception")
def uncaught_in_callee(x):
    def f(v):
        return v[10]

    return f([1, 2]) + x


@case(X, [], breaks="uncaught-exception")
def uncaught_after_effect(x, log):
    log.append(x + 1)
    raise ValueError("after")


@case(X, {}, breaks="uncaught-exception")
def uncaught_key_error(x, d):
    return x + d["missing"]


@case(X, breaks="uncaught-exception")
def uncaught_from(x):
    try:
        raise KeyError("inner")
    except KeyError as e:
        raise MyError(1) from e


@case(X, breaks="uncaught-exception")
def uncaught_with_finally(x):
    log = []
    try:
        raise Plain("p")
    finally:
        log.append(1)


@case(X)
def assertion(x):
    assert x.shape == (4,)
    assert len(x) == 4, "message"
    try:
        assert len(x) == 5, f"length {len(x)}"
    except AssertionError as e:
        return x + 1, e.args


@case(X, breaks="uncaught-exception")
def assertion_fails(x):
    assert len(x) == 5, "wrong length"
    return x


@case(X, breaks=ANY)
def assertion_on_tensor(x):
    assert (x >= 0).all(), "negative"
    return x * 2


@case(X)
def type_errors_of_builtins(x):
    out, none, pair, not_callable = [], None, [1, 2], 5
    for f in (lambda: 1 + "a", lambda: "a" + 1, lambda: len(5), lambda: int("z"), lambda: [] + (), lambda: None.x,
              lambda: 1 / 0, lambda: not_callable(), lambda: "a" * "b", lambda: {} < {}, lambda: -"a", lambda: float("q"),
              lambda: (1).foo, lambda: int([]), lambda: range(1.5), lambda: "{}".format(), lambda: [].foo,
              lambda: 1 % 0, lambda: for_loop_over_int(), lambda: none[0], lambda: None + 1, lambda: 2 ** "a",
              lambda: "abc"[5], lambda: pair["x"], lambda: chr(-1), lambda: next(iter([]))):  # fmt: skip
        try:
            f()
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    return x + 1, out


def for_loop_over_int():
    for _ in 5:
        pass


@case(X)
def exception_groups(x):
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except ExceptionGroup as e:
        return x + 1, e.message, [type(v).__name__ for v in e.exceptions]


@case(X)
def except_star(x):
    log = []
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as e:
        log.append(len(e.exceptions))
    except* KeyError:
        log.append("key")
    return x + 1, log


@case(X)
def stop_iteration_value(x):
    try:
        raise StopIteration(5)
    except StopIteration as e:
        return x + e.value


@case(X)
def exception_matching_by_class_variable(x):
    kinds = {"a": ValueError, "b": (KeyError, TypeError)}
    out = []
    for k, exc in (("a", ValueError), ("b", TypeError)):
        try:
            raise exc(k)
        except kinds[k] as e:
            out.append(e.args)
    return x + 1, out


@case(X)
def os_error_attributes(x):
    try:
        raise OSError(2, "no file")
    except OSError as e:
        return x + e.errno, e.strerror


@case(X)
def key_error_text(x):
    try:
        {"a": 1}["b"]
    except KeyError as e:
        return x + 1, str(e), e.args[0]


# with statements ----------------------------------------------------------------------------------------------
class Manager:
    def __init__(self, log, suppress=False):
        self.log = log
        self.suppress = suppress

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append(("exit", kind.__name__ if kind else None, str(value) if value else None))
        return self.suppress


@case(X)
def with_manager(x):
    log = []
    with Manager(log) as m:
        y = x + 1
    return y, log, m


@case(X, Manager([]))
def with_existing_manager(x, m):
    with m:
        x = x * 2
    return x, len(m.log)


@case(X)
def with_suppression(x):
    log = []
    with Manager(log, suppress=True):
        raise ValueError("v")
    return x + 1, log


@case(X)
def with_exception_passes(x):
    log = []
    try:
        with Manager(log):
            raise ValueError("v")
    except ValueError as e:
        return x + 1, log, e.args


@case(X)
def with_several(x):
    log = []
    with Manager(log) as a, Manager(log, suppress=True) as b:
        log.append(a is b)
        raise KeyError("k")
    return x + 1, log


@case(X)
def with_return_inside(x):
    log = []

    def f():
        with Manager(log):
            return x + 1

    def g():
        for i in range(3):
            with Manager(log):
                if i == 1:
                    break
        return i

    return f(), g(), log


@contextlib.contextmanager
def managed(log, value):
    log.append("in")
    try:
        yield value
    except KeyError:
        log.append("suppressed")
    finally:
        log.append("out")


@case(X)
def contextmanager_decorator(x):
    log = []
    with managed(log, 5) as v:
        y = x + v
    with managed(log, 6):
        raise KeyError
    try:
        with managed(log, 7):
            raise ValueError("v")
    except ValueError as e:
        log.append(e.args)
    return y, log


@case(X)
def contextmanager_as_decorator(x):
    log = []

    @managed(log, 1)
    def f(v):
        return v + 1

    return f(x), f(x), log


@case(X)
def contextlib_helpers(x):
    with contextlib.nullcontext(5) as n:
        x = x + n
    with contextlib.suppress(KeyError, ValueError):
        raise ValueError
    return x


@case(X)
def exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(Manager(log))
        stack.callback(log.append, "callback")
        x = x + 1
    return x, log


@case(X)
def closing(x):
    class_log = []
    with contextlib.closing(Closable(class_log)) as c:
        x = x + c.k
    return x, class_log


class Closable:
    k = 2

    def __init__(self, log):
        self.log = log

    def close(self):
        self.log.append("closed")


@case(X)
def with_not_a_manager(x):
    try:
        with 5:
            pass
    except TypeError as e:
        return x + 1, str(e)


@case(X, breaks="builtin-call")
def with_break_inside(x):
    log = []
    with Manager(log):
        x = x + 1
        print("inside")
        x = x * 2
    return x, log


@case(X, breaks="builtin-call")
def try_break_inside(x):
    log = []
    try:
        x = x + 1
        print("inside")
        raise ValueError("v")
    except ValueError as e:
        log.append(e.args)
        print("handler")
    finally:
        log.append("finally")
    return x * 2, log


# match --------------------------------------------------------------------------------------------------------
@dataclasses.dataclass
class P:
    x: int
    y: int = 0


@case(X, 3)
def match_of_no_class(x, c):
    try:
        match x:
            case c():
                return x
    except TypeError as e:
        return x + 1, str(e)


def _classify(v):
    match v:
        case 0:
            return "zero"
        case 1 | 2:
            return "small"
        case int(n) if n > 100:
            return f"big {n}"
        case int():
            return "int"
        case "a" | "b" as s:
            return "letter " + s
        case str():
            return "text"
        case []:
            return "empty"
        case [one]:
            return ("one", one)
        case [first, *rest]:
            return (first, rest)
        case {"k": k, **others}:
            return (k, others)
        case P(x=0, y=y):
            return ("origin", y)
        case P(a, b):
            return (a, b)
        case None | True:
            return "const"
        case float() as f:
            return f
        case _:
            return "other"


@case(X)
def match_statement(x):
    values = [0, 2, 500, 7, "a", "zz", [], [1], (1, 2, 3), {"k": 1, "z": 2}, P(0, 5), P(3, 4), None, 2.5, {1}, {}]
    return x + 1, [_classify(v) for v in values]


@case(X, {"op": "scale", "by": 3})
def match_mapping_argument(x, d):
    match d:
        case {"op": "shift", "by": n}:
            return x + n
        case {"op": "scale", "by": n}:
            return x * n


@case(X)
def match_tensor(x):
    match x:
        case torch.Tensor(shape=(4,)):
            return x + 1
        case _:
            return x


@case(X)
def match_nested(x):
    match {"cmd": ["go", {"dir": "n"}]}:
        case {"cmd": ["go", {"dir": ("n" | "s") as d}]}:
            return x + 1, d


# conditionals -------------------------------------------------------------------------------------------------
@case(X, 3)
def conditional_expressions(x, n):
    a = "big" if n > 2 else "small"
    b = x if n else -x
    c = n > 1 and n < 5 or "no"
    d = 1 < n <= 3 != 4
    return b + 1, a, c, d, not n, n is not None, n in (1, 3)


@case(X)
def branch_on_shape(x):
    if x.dim() == 1 and x.shape[0] % 2 == 0:
        return x.reshape(2, -1)
    elif x.numel() > 100:
        return x
    else:
        return x + 1


@case(X, breaks="data-dependent-jump")
def branch_on_tensor(x):
    y = x * 2
    if y.sum() > 3:
        return y + 1
    return y - 1


@case(X, breaks="data-dependent-jump")
def while_on_tensor(x):
    while x.sum() < 20:
        x = x * 2
    return x


@case(X, breaks="data-dependent-jump")
def tensor_and_or(x):
    return (x.sum() > 0 and x + 1), (x.sum() < 0 or x - 1), not x.sum()


@case(X, breaks="data-dependent-jump")
def conditional_expression_on_tensor(x):
    return (x + 1 if x[0] > 0 else x - 1) * 2


# torch's own context managers ----------------------------------------------------------------------------------
@case(X.clone().requires_grad_())
def no_grad(x):
    with torch.no_grad():
        y = x * 2
        inside = torch.is_grad_enabled()
    z = x * 3
    return y, z, inside, torch.is_grad_enabled(), y.requires_grad, z.requires_grad


@case(X.clone().requires_grad_())
def enable_grad(x):
    with torch.no_grad():
        a = x + 1
        with torch.enable_grad():
            b = x + 2
        c = x + 3
    return a, b, c


@case(X.clone().requires_grad_())
def set_grad_enabled_block(x):
    with torch.set_grad_enabled(False):
        a = x + 1
    with torch.set_grad_enabled(len(x) == 4):
        b = x * 2
    return a, b


@case(X.clone().requires_grad_())
def set_grad_enabled_call(x):
    torch.set_grad_enabled(False)
    y = x * 2
    return y, torch.is_grad_enabled()


@case(X.clone().requires_grad_(), breaks="builtin-call")
def no_grad_across_break(x):
    with torch.no_grad():
        y = x * 2
        print("inside")
        z = x * 3
    return y, z, x * 4


@torch.no_grad()
def _without_grad(v):
    return v * 2


@case(X.clone().requires_grad_())
def no_grad_decorator(x):
    @torch.no_grad()
    def local(v):
        return v + 1

    return _without_grad(x), local(x), x * 3


@torch.no_grad
def _without_grad_bare(v):
    return v * 5


@case(X.clone().requires_grad_())
def no_grad_bare_decorator(x):
    return _without_grad_bare(x) + x


@case(X.clone().requires_grad_())
def no_grad_with_exception(x):
    try:
        with torch.no_grad():
            y = x * 2
            raise ValueError
    except ValueError:
        return y, x * 3


@case(X, breaks=ANY)
def inference_mode(x):
    with torch.inference_mode():
        y = x * 2
    return y + 1


@case(torch.ones(2, 2))
def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
    z = x @ x
    return y, z, y.dtype, torch.is_autocast_enabled("cpu")


@case(torch.ones(2, 2))
def autocast_disabled_inside(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ x
        with torch.autocast("cpu", enabled=False):
            b = x @ x
    return a, b


@torch.autocast("cpu", dtype=torch.bfloat16)
def _autocast_fn(v):
    return v @ v


@case(torch.ones(2, 2), breaks=ANY)
def autocast_decorator(x):
    return _autocast_fn(x)


@case(X, breaks=ANY)
def torch_device_context(x):
    with torch.device("cpu"):
        return x + torch.ones(4)


@case(X)
def default_dtype_change(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(4)
    torch.set_default_dtype(torch.float32)
    return y + x


@case(X.clone().requires_grad_(), breaks=ANY)
def saved_tensor_hooks(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return x * x


@case(X, breaks=ANY)
def record_function(x):
    with torch.autograd.profiler.record_function("name"):
        return x + 1
