//! Probe: finds whether dict versions or dict events report every kind of change in this interpreter.
//!
//! The gaps depend on the patch release.  Example: CPython 3.13.0 reports nothing for a store to an attribute that lies
//! in the object itself, although an instance dict that was read before shows the change.  So the probe tries every
//! kind of change once, also by bytecode that is specialised for instances with and without a dict of their own.  If
//! attributes inside objects cause the gap, `prepare` moves them into the dict, as `popitem` does.  The dict stays the
//! same object.

use super::dict_events::{self, FirstEvent};
use super::object::{clear_error, Obj, Owned, Raised, Res};
use super::sync::GilCell;
use super::words::{dict_version, first_changed};
use pyo3::ffi::*;
use pyo3::Python;
use std::mem::offset_of;

/// How a dict reports a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeSign {
    Nothing,
    Version,
    Event,
}

#[derive(Clone, Copy)]
struct Found {
    sign: ChangeSign,
    /// Whether attributes inside objects must be moved into the dict.
    moves: bool,
}

static FOUND: GilCell<Option<Found>> = GilCell::new(None);

fn found(py: Python<'_>) -> Found {
    if let Some(found) = FOUND.read(py, |f| *f) {
        return found;
    }
    let best = [ChangeSign::Event, ChangeSign::Version].into_iter().find_map(|sign| probe(py, sign));
    let found = best.unwrap_or(Found { sign: ChangeSign::Nothing, moves: false });
    FOUND.replace(py, Some(found));
    found
}

/// The sign that works for dicts of this interpreter; probed once.
pub fn sign(py: Python<'_>) -> ChangeSign {
    found(py).sign
}

/// For tests: selects another sign if it works here.  None selects the best one.  Only trees built later use it.
pub fn force(py: Python<'_>, sign: Option<ChangeSign>) -> ChangeSign {
    let nothing = Some(Found { sign: ChangeSign::Nothing, moves: false });
    let forced = match sign {
        None => None,
        Some(ChangeSign::Nothing) => nothing,
        Some(sign) => probe(py, sign).or(nothing),
    };
    FOUND.replace(py, forced);
    found(py).sign
}

extern "C" {
    fn PyThreadState_EnterTracing(thread: *mut PyThreadState);
    fn PyThreadState_LeaveTracing(thread: *mut PyThreadState);
}

/// While this value is alive, no trace or profile function of this thread sees the code that runs.
struct TracingPause(*mut PyThreadState);

impl TracingPause {
    fn new() -> TracingPause {
        // SAFETY: the GIL is held, as for every caller of this module, so this thread has a state.
        unsafe {
            let thread = PyThreadState_Get();
            PyThreadState_EnterTracing(thread);
            TracingPause(thread)
        }
    }
}

impl Drop for TracingPause {
    fn drop(&mut self) {
        // SAFETY: as above; a thread's state lives as long as the thread holds the GIL.
        unsafe { PyThreadState_LeaveTracing(self.0) }
    }
}

/// How to use `sign` in this interpreter.  None if it misses changes.
fn probe(py: Python<'_>, sign: ChangeSign) -> Option<Found> {
    if sign == ChangeSign::Event && !dict_events::available(py) {
        return None;
    }
    let _untraced = TracingPause::new();
    let works = |found: &Found| {
        tells_of_every_change(*found).unwrap_or_else(|Raised| {
            clear_error();
            false
        })
    };
    [false, true].into_iter().map(|moves| Found { sign, moves }).find(works)
}

/// Whether a dict shows attributes that lie in objects: of one instance, or of the instances of its class.
fn is_split(dict: Obj) -> bool {
    let values = dict.id() + offset_of!(PyDictObject, ma_used) + 3 * size_of::<usize>();
    // SAFETY: *live*; callers check that it is a dict; the word follows the word of its keys.
    unsafe { *(values as *const usize) != 0 }
}

/// Whether a dict that shows attributes shows all of them.  `clear` of 3.13 first makes the dict empty, then drops the
/// attributes one by one.  A dict in that state must not be moved or watched: the remaining drops cause no event.  A
/// finalizer can see it.
fn is_whole(dict: Obj) -> bool {
    if !cfg!(Py_3_13) {
        return true;
    }
    let words = dict.id() + offset_of!(PyDictObject, ma_used) + 3 * size_of::<usize>();
    // SAFETY: *live*; callers check that it is such a dict.  The word is the address of CPython 3.13's `_dictvalues`,
    // which starts with the number of its places; the places follow after eight bytes.
    let there = unsafe {
        let values = *(words as *const usize);
        let places = *(values as *const u8) as usize;
        (0..places).filter(|k| *((values + 8 + k * size_of::<usize>()) as *const usize) != 0).count()
    };
    there as isize == dict.dict_len() as isize
}

/// Prepares a dict so that it reports every change.  False if that fails.  Runs no code except other watchers of the
/// dict.
pub fn prepare(dict: Obj) -> bool {
    if !is_split(dict) {
        return true;
    }
    if !is_whole(dict) {
        return false;
    }
    if !found(dict.py()).moves {
        return true;
    }
    move_values(dict).unwrap_or_else(|Raised| {
        clear_error();
        false
    })
}

/// Removes the last item and adds it again.  Nothing else about the dict changes, nor does its order.
fn move_values(dict: Obj) -> Res<bool> {
    if dict.dict_len() == 0 {
        let none = Owned::none();
        dict.own().dict_set(Owned::interned("__dict__")?.get(), none.get())?;
        dict.own().attr(c"popitem")?.call(&[], None)?;
    } else {
        let item = dict.own().attr(c"popitem")?.call(&[], None)?;
        dict.own().dict_set(item.get().tuple_item(0), item.get().tuple_item(1))?;
        // there is room: `popitem` has just built the table
    }
    Ok(!is_split(dict))
}

// Every way to change a dict `d`, by name.  Instances are changed through attributes, by bytecode specialised for
// instances like them or unlike them.  `ready` does what the engine does to a dict before it watches it.
const PROBE: &std::ffi::CStr = c"
import types, collections
class Thing:
    def __init__(self):
        self.a = 1; self.b = 2
class Hooked:
    def __init__(self):
        self.a = 1; self.b = 2
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
class Listed(list):
    def __init__(self):
        self.a = 1; self.b = 2
class Sub(dict): pass
class Empty: pass
def store_one(o, v):
    o.a = v
def ready(moves, d):
    if moves and d:
        k, v = d.popitem(); d[k] = v
    return d
def plain(d):
    return d, [lambda: d.__setitem__('a', 3), lambda: d.__setitem__('c', 1), lambda: d.__delitem__('c'), lambda: d.pop('b'),
               lambda: d.setdefault('q', 1), lambda: d.update(a=9), lambda: d.update({'z': 1}), lambda: d.__ior__({'y': 2}),
               lambda: d.popitem(), lambda: d.clear(), lambda: d.update({'z': 1, 'w': 5}), lambda: d.clear(),
               lambda: d.__setitem__(1, 2), lambda: dict.__setitem__(d, 'c', 1), lambda: dict.clear(d), lambda: d.__init__(a=7)]
def instance(kind, warm, moves):
    store = types.FunctionType(store_one.__code__.replace(), {})
    o = kind()
    if warm == 1:
        for i in range(40): store(kind(), i)
    v = ready(moves, vars(o))
    if warm > 1:
        for i in range(40):
            t = o if warm == 2 else kind()
            if warm == 4: ready(moves, vars(t))
            store(t, i)
    return v, [lambda: store(o, 'x'), lambda: store(o, 'y'), lambda: setattr(o, 'a', 6), lambda: setattr(o, 'new', 6),
               lambda: delattr(o, 'b'), lambda: object.__setattr__(o, 'a', 7), lambda: v.__setitem__('a', 8), lambda: store(o, 9),
               lambda: [store(o, i) for i in range(40)], lambda: store(o, 10), lambda: object.__delattr__(o, 'a'),
               lambda: store(o, 11), lambda: v.clear(), lambda: store(o, 12)]
def module():
    m = types.ModuleType('m'); m.x = 1
    return vars(m), [lambda: setattr(m, 'x', 2), lambda: setattr(m, 'y', 2), lambda: delattr(m, 'y')]
def changes(moves):
    items = {'a': 1, 'b': 2}
    made = [plain(dict(items)), plain(collections.OrderedDict(items)), plain(Sub(items)), plain(collections.defaultdict(int, items)), module()]
    return tuple(made + [instance(kind, warm, moves) for kind in (Thing, Hooked, Listed) for warm in range(5)])
def doomed():
    return [{'a': 1}], [collections.OrderedDict(a=1)], [Sub(a=1)], [{}], [Thing()], [Hooked()], [Empty()]
";

fn tells_of_every_change(found: Found) -> Res<bool> {
    let scope = Owned::dict()?;
    pyo3::Python::attach(|py| py.run(PROBE, Some(&scope.get().to_bound(py).cast_into()?), None))?;
    let get = |name: &str| -> Res<Owned> { scope.dict_get(&Owned::interned(name)?)?.ok_or(Raised) };
    let moves = Owned::bool(found.moves);
    for pair in get("changes")?.call(&[moves.get()], None)?.to_tuple()?.get().tuple_items() {
        let (dict, steps) = (pair.tuple_item(0), pair.tuple_item(1).own().to_tuple()?);
        if found.moves && is_split(dict) {
            return Ok(false);
        }
        for step in steps.get().tuple_items() {
            let sign = DictWatch::new(found.sign, dict);
            step.own().call(&[], None)?;
            if !sign.changed() {
                return Ok(false);
            }
        }
    }
    match found.sign {
        ChangeSign::Version => has_versions_of_its_own(),
        _ => tells_its_death(found, &get("doomed")?),
    }
}

/// Checks that two new dicts never share a version.
fn has_versions_of_its_own() -> Res<bool> {
    let (a, b) = (Owned::dict()?, Owned::dict()?);
    Ok(!dict_version(a.get()).had_value_of(dict_version(b.get())))
}

fn tells_its_death(found: Found, doomed: &Owned) -> Res<bool> {
    for holder in doomed.call(&[], None)?.to_tuple()?.get().tuple_items() {
        let Some(object) = holder.list_item(0) else { return Ok(false) };
        let Some(dict) = (if object.is_dict() { Some(object) } else { object.instance_dict() }) else {
            return Ok(false);
        };
        if found.moves && is_split(dict) && !move_values(dict)? {
            return Ok(false);
        }
        let mut news = FirstEvent::default();
        news.watch(dict, 0);
        holder.own().attr(c"clear")?.call(&[], None)?;
        if news.heard().is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

enum DictWatch {
    Version(super::words::Word),
    Event(FirstEvent),
}

impl DictWatch {
    fn new(sign: ChangeSign, dict: Obj) -> DictWatch {
        if sign == ChangeSign::Version {
            return DictWatch::Version(dict_version(dict));
        }
        let mut news = FirstEvent::default();
        news.watch(dict, 0);
        DictWatch::Event(news)
    }

    fn changed(&self) -> bool {
        match self {
            DictWatch::Version(word) => first_changed(&[*word]).is_some(),
            DictWatch::Event(news) => news.heard().is_some(),
        }
    }
}
