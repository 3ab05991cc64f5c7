"""Exceptions and lifetimes around graph breaks: exceptions in handlers, tracebacks, and objects freed with the call."""

from __future__ import annotations

import contextlib
import gc
import traceback
import weakref

import pytest
import torch

import pycompiler


@contextlib.contextmanager
def manager(log):
    try:
        yield 1
    finally:
        log.append("out")


def brk(value):
    pycompiler.graph_break()
    return value


def names_and_lines(error):
    frames = traceback.extract_tb(error.__traceback__)
    return [(f.name, f.lineno) for f in frames if f.filename == __file__]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_an_exception_leaves_try_finally_in_a_generator_manager_after_a_break(backend):
    def program(x, log):
        with manager(log):
            try:
                y = brk(x + 1)
                raise brk(ValueError("t"))
            finally:
                log.append(float(y.sum()))

    log = []
    with pytest.raises(ValueError, match="t"):
        pycompiler.compile(program, backend=backend)(torch.ones(2), log)
    assert log == [4.0, "out"]


def test_an_exit_method_gets_the_traceback_of_an_exception_that_was_captured():
    class Keeper:
        def __enter__(self):
            return self

        def __exit__(self, cls, value, tb):
            pycompiler.graph_break()
            self.seen = [(f.name, f.lineno) for f in traceback.extract_tb(tb)]
            return True

    def inner(x):
        raise KeyError(x.shape[0])

    def program(x, keeper):
        with keeper:
            inner(x)
        return x + 1

    wanted, found = Keeper(), Keeper()
    program(torch.ones(2), wanted)
    assert torch.equal(pycompiler.compile(program, backend="eager")(torch.ones(2), found), torch.full((2,), 2.0))
    assert found.seen == wanted.seen
    assert [name for name, _ in found.seen] == ["program", "inner"]


def test_a_traceback_that_a_manager_puts_back_has_no_frames_of_the_manager():
    @contextlib.contextmanager
    def managed():
        yield 1

    def program(x):
        with managed():
            with managed():
                raise KeyError(x.shape[0])

    def renewed(x):
        try:
            raise KeyError(x.shape[0])
        except KeyError as error:
            kept = error.__traceback__
            try:
                raise error
            except KeyError:
                pass
            brk(x)
            raise error.with_traceback(kept)

    for fn in (program, renewed):
        told = []
        for called in (fn, pycompiler.compile(fn, backend="eager")):
            with pytest.raises(KeyError) as raised:
                called(torch.ones(2))
            told.append([line for _, line in names_and_lines(raised.value)][1:])
        assert told[0] == told[1]


def test_an_existing_exception_raised_again_grows_its_traceback():
    known = ValueError("known")

    def program(x):
        try:
            raise known
        except ValueError:
            pycompiler.graph_break()
        return x + 1

    program(torch.ones(2))
    wanted = names_and_lines(known)
    known.__traceback__ = None
    pycompiler.compile(program, backend="eager")(torch.ones(2))
    assert names_and_lines(known) == wanted


def test_an_existing_exception_raised_in_a_handler_gets_its_context():
    def program(x, error):
        try:
            raise KeyError("first")
        except KeyError:
            pycompiler.graph_break()
            raise error

    error = ValueError("second")
    with pytest.raises(ValueError, match="second"):
        pycompiler.compile(program, backend="eager")(torch.ones(2), error)
    assert repr(error.__context__) == "KeyError('first')"


def broken_in_a_manager(log):
    with leaving(log):
        raise brk(KeyError("second"))


def broken_in_a_handler(log):
    try:
        raise KeyError("second")
    except KeyError as error:
        log.append(type(error.__context__).__name__)
        pycompiler.graph_break()
        log.append(type(error.__context__).__name__)
        raise


def raised_again_in_a_handler(log):
    try:
        raise KeyError("second")
    except KeyError as error:
        pycompiler.graph_break()
        raise IndexError from error


@contextlib.contextmanager
def leaving(log):
    try:
        yield
    finally:
        log.append("out")


@pytest.mark.parametrize("callee", [broken_in_a_manager, broken_in_a_handler, raised_again_in_a_handler])
def test_an_exception_raised_below_a_handler_has_what_that_handles_as_context(callee):
    def program(log):
        try:
            raise ValueError("first")
        except ValueError:
            callee(log)

    def contexts(error):
        return [] if error is None else [type(error).__name__, *contexts(error.__context__)]

    seen = []
    for fn in (program, pycompiler.compile(program, backend="eager")):
        log = []
        with pytest.raises(LookupError) as caught:
            fn(log)
        seen.append((contexts(caught.value), log))
    assert seen[0] == seen[1]


def test_the_caller_of_a_broken_callee_is_at_its_call():
    def callee(x):
        pycompiler.graph_break()
        raise ValueError(x.shape[0])

    def program(x):
        y = x + 1
        return callee(y)

    seen = []
    for fn in (program, pycompiler.compile(program, backend="eager")):
        with pytest.raises(ValueError) as caught:
            fn(torch.ones(2))
        seen.append([line for _, line in names_and_lines(caught.value)[1:]])
    assert seen[0] == seen[1]


def broken(x, box):
    box.append(1)
    y = x + 1
    pycompiler.graph_break()
    for value in (v * 2 for v in box):
        y = y * value
    return y


def whole(x, box):
    for i, value in enumerate(box):
        x = x + i * value
    return x


def catching(x, box):
    try:
        raise KeyError(len(box))
    except KeyError as error:
        pycompiler.graph_break()
        box.append(str(error))
    return x + 1


def raising(x, box):
    y = x + 1
    raise brk(ValueError(y.shape[0]))


def closing(x, box):
    def inner(a, scale=x):
        pycompiler.graph_break()
        return a * scale

    return inner(x + 1)


def closing_again(x, box):
    def inner(a, scale=x):
        pycompiler.graph_break()
        return a * scale

    return inner(x) + inner(x + 1)  # the second call checks the guards of the first call


def closing_below_a_break(x, box):
    def inner(a):
        return brk(a) + len(box)

    with contextlib.nullcontext():  # breaks below do not break this frame: the hook catches `inner`
        return x * inner(1) + inner(2)


@contextlib.contextmanager
def suspended():
    try:
        yield
    finally:
        pass


def raising_over_a_suspended_generator(x, box):
    with suspended(), suspended():
        return sum(v + missing for v in box)  # noqa: F821


def refused_operator(x, box):
    return x - "a"


class Box(list):
    pass


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    "program",
    [broken, whole, catching, raising, closing, closing_again, closing_below_a_break,
     raising_over_a_suspended_generator, refused_operator],
)  # fmt: skip
def test_what_is_passed_dies_with_the_call(program, backend):
    compiled = pycompiler.compile(program, backend=backend)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            x, box = torch.ones(3), Box([3])
            refs = weakref.ref(x), weakref.ref(box)
            with contextlib.suppress(ValueError, NameError, TypeError):
                compiled(x, box)
            del x, box
            assert [r() for r in refs] == [None, None]
    finally:
        gc.enable()


class Row(list):
    """A list that can have weak references."""


class Table(dict):
    """A dict that can have weak references."""


def read_and_broken(items, table, x):
    pair = [v * 2 for v in items], table.items()
    pycompiler.graph_break()
    return x + len(pair[0]) + len(pair[1])


def written(items, table, x):
    items.append(x)
    table["b"] = x
    return x + 1


@pytest.mark.parametrize("program", [read_and_broken, written])
def test_instances_of_subclasses_die_with_the_call(program):
    compiled = pycompiler.compile(program, backend="eager")
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            items, table = Row([3]), Table(a=1)
            refs = weakref.ref(items), weakref.ref(table)
            compiled(items, table, torch.ones(3))
            del items, table
            assert [r() for r in refs] == [None, None]
    finally:
        gc.enable()


def test_views_of_what_only_they_hold():
    def program(x):
        view, iterator = Table(a=x).items(), iter(Row([x, 2]))
        pycompiler.graph_break()
        (tensor,) = [v for _, v in view]
        return type(view.mapping), type(iterator.__reduce__()[1][0]), tensor + next(iterator)

    x = torch.ones(3)
    wanted, found = program(x), pycompiler.compile(program, backend="eager")(x)
    assert found[0] is wanted[0]
    assert found[1] is wanted[1]
    assert torch.equal(found[2], wanted[2])


def test_a_module_dies_with_its_compiled_call():
    module = torch.nn.Linear(2, 2)
    call = pycompiler.compile(lambda m, x: m(x).relu(), backend="native")
    gc.collect()
    gc.disable()
    try:
        call(module, torch.ones(2))
        ref, weight = weakref.ref(module), weakref.ref(module.weight)
        del module
        assert ref() is None
        assert weight() is None
    finally:
        gc.enable()


def returned_before_its_variable_changes(x):
    try:
        try:
            pycompiler.graph_break()
            return x
        finally:
            x = x * 0.5
            pycompiler.graph_break()
    finally:
        x = x + 1
        pycompiler.graph_break()


def swapped_on_the_stack(x):
    y = x + 5
    try:
        return [x, (x := y), (y := x + 1), pycompiler.graph_break(), x, y]
    except KeyError:
        return x, y


def handled_and_returned(x):
    try:
        try:
            raise ValueError
        except ValueError:
            pycompiler.graph_break()
            return x
        finally:
            x = x * 0.5
            pycompiler.graph_break()
    except KeyError:
        pass
    return x


@pytest.mark.parametrize("program", [returned_before_its_variable_changes, swapped_on_the_stack, handled_and_returned])
def test_what_is_on_the_stack_is_not_what_its_variable_becomes(program):
    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(2):
        assert repr(compiled(torch.ones(2))) == repr(program(torch.ones(2)))


def test_an_existing_exception_keeps_the_cause_it_is_raised_from():
    def raises(x, error, cause):
        try:
            raise error from cause
        except ValueError as e:
            return x + 1, e.__cause__

    error, cause = ValueError("a"), KeyError("k")
    got = pycompiler.compile(raises)(torch.ones(2), error, cause)
    assert got[1] is cause and error.__cause__ is cause and error.__suppress_context__
    pycompiler.compile(raises)(torch.ones(2), error, None)
    assert error.__cause__ is None


class Told(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def test_an_exception_that_exists_is_initialised() -> None:
    """CPython's C code sets `args`, in the call that the interpreter makes."""
    made = Told.__new__(Told, "text", 2)
    pycompiler.compile(Told.__init__, backend="eager")(made, "text", 2)
    assert made.args == ("text",)
    assert made.code == 2


def taken_away(x):
    try:
        raise ValueError("a")
    except ValueError as e:
        e.__traceback__ = None
        return x + 1, e


def taken_away_by_a_call(x):
    try:
        raise ValueError("a")
    except ValueError as e:
        kept = e.with_traceback(None)
    return x + 1, kept, kept.__traceback__


def taken_away_and_raised_again(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as e:
            e.__traceback__ = None
            raise
    except ValueError as e:
        return x + 1, e, e.__traceback__ is None


def begun_anew(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as e:
            raise e.with_traceback(None)
    except ValueError as e:
        return x + 1, e


@pytest.mark.parametrize("fn", [taken_away, taken_away_by_a_call, taken_away_and_raised_again, begun_anew])
def test_a_traceback_that_is_taken_away_is_gone(fn):
    seen = []
    for run in (fn, pycompiler.compile(fn, backend="eager", fullgraph=True)):
        _, alone, *more = run(torch.ones(2))
        try:
            raise KeyError
        except KeyError:
            _, below, *_ = run(torch.ones(2))
        seen.append((names_and_lines(alone), more, alone.__context__, type(below.__context__), names_and_lines(below)))
    assert seen[0] == seen[1]


def a_cause_hides_the_context(x):
    try:
        try:
            raise ValueError("a")
        except ValueError:
            made = KeyError("b")
            made.__cause__ = None
            raise made
    except KeyError as e:
        return x + 1, e.__suppress_context__, type(e.__context__), e


def shown_in_spite_of_a_cause(x):
    made = ValueError("a")
    made.__suppress_context__ = True
    made.__cause__ = KeyError("b")
    made.__suppress_context__ = False
    return x + 1, made.__suppress_context__, type(made.__cause__), made


def hidden_by_a_later_cause(x):
    made = ValueError("a")
    made.__suppress_context__ = False
    made.__cause__ = KeyError("b")
    return x + 1, made.__suppress_context__, type(made.__cause__), made


def what_is_no_cause(x):
    made, texts = ValueError("a"), []
    for name in ("__cause__", "__context__", "__suppress_context__"):
        try:
            setattr(made, name, 3)
        except TypeError as e:
            texts.append(str(e))
    return x + 1, *texts, made


class Comparing:
    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.same = trace is value.__traceback__
        return True


def one_traceback(x):
    with Comparing() as manager:
        raise ValueError("a")
    made = OSError(2, "no", "name")
    return x + 1, manager.same, made.args, made.filename, made


@pytest.mark.parametrize(
    "fn",
    [a_cause_hides_the_context, shown_in_spite_of_a_cause, hidden_by_a_later_cause, what_is_no_cause, one_traceback],
)
def test_what_an_exception_is_told(fn):
    seen = []
    for run in (fn, pycompiler.compile(fn, backend="eager", fullgraph=True)):
        _, *told, error = run(torch.ones(2))
        seen.append((told, error.args, error.__suppress_context__, type(error.__cause__)))
    assert seen[0] == seen[1]
