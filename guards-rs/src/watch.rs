//! Who looks at calls: torch's profiler, which is shown ranges, and a watcher in Python, which is told what guards and steps cost.
//!
//! While nobody does, a call asks `eye()`, which compares two words (`ffi::profiling`).

use crate::entry::Contents;
use crate::ffi::profiling;
use crate::ffi::sync::GilCell;
use crate::ffi::{Obj, Owned, Res};
use crate::hook::paused;
use pyo3::prelude::*;

/// The variables of the module that says whether torch's profiler is on, the name of the one that does, and what makes a range.
struct Ranges {
    variables: Obj,
    name: Owned,
    begin: Owned,
    prefix: String,
}

static RANGES: GilCell<Option<Ranges>> = GilCell::new(None);
static WATCHER: GilCell<Option<Owned>> = GilCell::new(None);

/// Those who look, during one call.
pub struct Eye {
    begin: Option<(Owned, String)>,
    watcher: Option<Owned>,
}

/// None while nobody looks.
#[inline]
pub fn eye() -> Option<Eye> {
    if profiling::on() {
        look()
    } else {
        None
    }
}

#[cold]
#[inline(never)]
fn look() -> Option<Eye> {
    let watcher = WATCHER.read(|w| w.clone());
    let begin = RANGES.read(|ranges| {
        let ranges = ranges.as_ref()?;
        let on = ranges.variables.dict_find(*ranges.name, 0).ok().flatten()?;
        (on == *Owned::bool(true)).then(|| (ranges.begin.clone(), ranges.prefix.clone()))
    });
    if watcher.is_none() && begin.is_none() {
        profiling::rest();
        return None;
    }
    Some(Eye { begin, watcher })
}

impl Eye {
    /// A range in torch's profile, and on NVTX, until it is dropped.
    pub fn range(&self, name: impl FnOnce() -> String) -> Option<Range> {
        let (begin, prefix) = self.begin.as_ref()?;
        aside(|| {
            let range = begin.call(&[*Owned::str(&format!("{prefix}{}", name()))?], None)?;
            range.attr(c"__enter__")?.call(&[], None)?;
            Ok(Range(range))
        })
    }

    /// `watcher("call", callable, guards)`: whether it wants to know what they cost; then
    /// `watcher("entry", callable, position, guards, call, all, [of each guard])`, in nanoseconds.
    pub fn tell_entry(
        &self,
        this: Obj,
        position: usize,
        contents: &Contents,
        locals: &[Option<Obj>],
        globals: Obj,
    ) -> Res<()> {
        let Some(watcher) = &self.watcher else { return Ok(()) };
        let wanted = || watcher.call(&[*Owned::str("call")?, this, contents.guards()], None)?.is_true();
        if !paused(wanted)? {
            return Ok(());
        }
        let Some(found) = contents.profile(locals, globals) else { return Ok(()) };
        let each = found.guards.into_iter().map(Owned::float).collect::<Res<Vec<_>>>()?;
        paused(|| {
            let what = Owned::str("entry")?;
            let (position, each) = (Owned::int(position as i64)?, Owned::list_from(each)?);
            let (call, all) = (Owned::float(found.call)?, Owned::float(found.all)?);
            watcher.call(&[*what, this, *position, contents.guards(), *call, *all, *each], None).map(drop)
        })
    }

    /// `watcher("plan", plan, [of each step])`, in nanoseconds.
    pub fn tell_plan(&self, plan: Obj, steps: &[f64]) -> Res<()> {
        let Some(watcher) = &self.watcher else { return Ok(()) };
        let each = steps.iter().map(|ns| Owned::float(*ns)).collect::<Res<Vec<_>>>()?;
        paused(|| watcher.call(&[*Owned::str("plan")?, plan, *Owned::list_from(each)?], None).map(drop))
    }
}

pub struct Range(Owned);

impl Drop for Range {
    fn drop(&mut self) {
        let none = Owned::none();
        aside(|| self.0.attr(c"__exit__")?.call(&[*none, *none, *none], None).map(drop));
    }
}

/// Runs Python code beside the call: an exception that is set stays set, and none comes of it.
fn aside<T>(work: impl FnOnce() -> Res<T>) -> Option<T> {
    Python::attach(|py| {
        let pending = PyErr::take(py);
        let result = paused(work);
        if result.is_err() {
            drop(PyErr::take(py));
        }
        if let Some(pending) = pending {
            pending.restore(py);
        }
        result.ok()
    })
}

/// `show_ranges(variables, name, begin, prefix)`: while `variables[name]` is True, calls have ranges `begin(prefix + text)`,
/// context managers.  False where a change of that dict cannot be noticed: then there are none.
#[pyfunction]
pub fn show_ranges(
    variables: &Bound<'_, PyAny>,
    name: &str,
    begin: &Bound<'_, PyAny>,
    prefix: String,
) -> PyResult<bool> {
    if !profiling::look_at(Obj::of(variables).own())? {
        return Ok(false);
    }
    let (name, begin) = (Owned::interned(name)?, Obj::of(begin).own());
    let ranges = Ranges { variables: Obj::of(variables), name, begin, prefix };
    drop(RANGES.replace(Some(ranges)));
    profiling::stir(); // the next call looks
    Ok(true)
}

/// `set_watcher(callback)`: is told of every call, in every thread, what it cost (`Eye::tell_entry`, `tell_plan`); None ends it.
#[pyfunction]
pub fn set_watcher(callback: Option<&Bound<'_, PyAny>>) {
    drop(WATCHER.replace(callback.map(|c| Obj::of(c).own())));
    profiling::stir();
}
