//! Observers of calls.  torch's profiler receives ranges; a Python watcher receives the costs of guards and steps.
//!
//! While no observer is active, a call only runs `eye()`, which compares two words (`ffi::profiling`).

use crate::ffi::profiling;
use crate::ffi::sync::GilCell;
use crate::ffi::{Obj, Owned, Res};
use crate::guard::profile::Profile;
use crate::hook_state::paused;
use pyo3::prelude::*;

/// The module variables that say whether torch's profiler is on, the name of that variable, and the function that
/// creates a range.
struct Ranges {
    variables: Owned,
    name: Owned,
    begin: Owned,
    prefix: String,
}

static RANGES: GilCell<Option<Ranges>> = GilCell::new(None);
static WATCHER: GilCell<Option<Owned>> = GilCell::new(None);

/// The active observers during one call.
pub struct CallObserver {
    begin: Option<(Owned, String)>,
    watcher: Option<Owned>,
}

/// None while no observer is active.
#[inline]
pub fn eye(py: Python<'_>) -> Option<CallObserver> {
    if profiling::on() {
        look(py)
    } else {
        None
    }
}

#[cold]
#[inline(never)]
fn look(py: Python<'_>) -> Option<CallObserver> {
    let watcher = WATCHER.read(py, |w| w.clone());
    let begin = RANGES.read(py, |ranges| {
        let ranges = ranges.as_ref()?;
        let on = ranges.variables.get().dict_find(ranges.name.get(), 0).ok().flatten()?;
        (on == Owned::bool(true).get()).then(|| (ranges.begin.clone(), ranges.prefix.clone()))
    });
    if watcher.is_none() && begin.is_none() {
        profiling::rest();
        return None;
    }
    Some(CallObserver { begin, watcher })
}

impl CallObserver {
    /// A range in torch's profile, and in NVTX, until it is dropped.
    pub fn range(&self, name: impl FnOnce() -> String) -> Option<Range> {
        let (begin, prefix) = self.begin.as_ref()?;
        aside(|| {
            let range = begin.call(&[Owned::str(&format!("{prefix}{}", name()))?.get()], None)?;
            range.attr(c"__enter__")?.call(&[], None)?;
            Ok(Range(range))
        })
    }

    /// Calls `watcher("call", callable, guards)`, which returns whether it wants the costs.  If so, calls
    /// `watcher("entry", callable, position, guards, call, all, [of each guard])`, in nanoseconds.
    pub fn tell_entry(
        &self,
        this: Obj,
        position: usize,
        guards: Obj,
        costs: impl FnOnce() -> Option<Profile>,
    ) -> Res<()> {
        let Some(watcher) = &self.watcher else { return Ok(()) };
        let wanted = || watcher.call(&[Owned::str("call")?.get(), this, guards], None)?.is_true();
        if !paused(wanted)? {
            return Ok(());
        }
        let Some(found) = costs() else { return Ok(()) };
        let each = found.guards.into_iter().map(Owned::float).collect::<Res<Vec<_>>>()?;
        paused(|| {
            let what = Owned::str("entry")?;
            let (position, each) = (Owned::int(position as i64)?, Owned::list_from(each)?);
            let (call, all) = (Owned::float(found.call)?, Owned::float(found.all)?);
            watcher.call(&[what.get(), this, position.get(), guards, call.get(), all.get(), each.get()], None).map(drop)
        })
    }

    /// Calls `watcher("plan", plan, [of each step])`, in nanoseconds.
    pub fn tell_plan(&self, plan: Obj, steps: &[f64]) -> Res<()> {
        let Some(watcher) = &self.watcher else { return Ok(()) };
        let each = steps.iter().map(|ns| Owned::float(*ns)).collect::<Res<Vec<_>>>()?;
        paused(|| watcher.call(&[Owned::str("plan")?.get(), plan, Owned::list_from(each)?.get()], None).map(drop))
    }
}

pub struct Range(Owned);

impl Drop for Range {
    fn drop(&mut self) {
        let none = Owned::none();
        aside(|| self.0.attr(c"__exit__")?.call(&[none.get(), none.get(), none.get()], None).map(drop));
    }
}

/// Runs Python code beside the call.  A pending exception stays pending, and an exception of `work` is dropped.
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

/// `show_ranges(variables, name, begin, prefix)`: while `variables[name]` is True, calls create ranges `begin(prefix +
/// text)`, which are context managers.  Returns False, and creates none, if changes of that dict cannot be noticed.
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
    let ranges = Ranges { variables: Obj::of(variables).own(), name, begin, prefix };
    drop(RANGES.replace(variables.py(), Some(ranges)));
    profiling::stir(); // the next call looks for observers
    Ok(true)
}

/// `set_watcher(callback)`: reports the cost of every call, in every thread (`CallObserver::tell_entry`, `tell_plan`).  None
/// ends it.
#[pyfunction]
pub fn set_watcher(py: Python<'_>, callback: Option<&Bound<'_, PyAny>>) {
    drop(WATCHER.replace(py, callback.map(|c| Obj::of(c).own())));
    profiling::stir();
}
