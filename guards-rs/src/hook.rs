//! The frame hook: handles frames that a captured frame calls and that could not be inlined.
//!
//! In: `set_frame_hook(callback)`, or an Entry with `frame_hook=FrameHook(callback)`.  The hook is on in a thread
//! between `enter_hook` and `exit_hook`, or while such an entry runs.  Then the code of each new function frame is
//! looked up.  For an unknown code, `callback(code, function)` is called once and returns a CompiledFunction or None.
//! The code object stores the answer.  The callback of the innermost running entry decides, so that the caches of two
//! compiled callables stay apart.  A frame with a CompiledFunction is handled like a direct call: guards, entry, or
//! compilation.
//!
//! The hook is off in a thread while that thread compiles, and for a single frame that the engine itself runs eagerly.

use crate::compiled::{self, Compiled};
use crate::ffi::frame::{self, CachedAnswer, Evaluator, Frame, FrameAction};
use crate::ffi::object::{clear_error, is_error, is_shortage, type_error};
use crate::ffi::sync::GilCell;
use crate::ffi::{callable, collector, visit_obj, Obj, Owned, Res};
use crate::hook_state::{self, active, pause, resume};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The hook of the process.
#[derive(Default)]
struct Hook {
    callback: Option<Owned>,
    /// The generation of the current callback.  Answers of other generations do not count; the callback is called
    /// again.
    generation: u64,
    /// Number of generations used so far.
    given: u64,
    /// Number of threads and nesting depths at which the hook is on.
    users: usize,
}

static HOOK: GilCell<Hook> = GilCell::new(Hook { callback: None, generation: 0, given: 0, users: 0 });

/// The generation of answers that hold for every callback.
const FOR_EVER: u64 = u64::MAX;

thread_local! {
    /// Sources of the running entries, the innermost last.
    static CURRENT: RefCell<Vec<Rc<Source>>> = const { RefCell::new(Vec::new()) };
    /// Address of the code object whose next frame the hook ignores.
    static PASS: Cell<usize> = const { Cell::new(0) };
}

pub fn set_callback(py: Python<'_>, callback: Option<Owned>) -> Res<()> {
    if callback.as_ref().is_some_and(|c| !c.get().is_callable()) {
        return Err(type_error("set_frame_hook(callback): callback must be callable or None"));
    }
    let old = HOOK.with(py, |h| {
        h.given += 1;
        h.generation = h.given;
        std::mem::replace(&mut h.callback, callback)
    });
    drop(old);
    Ok(())
}

pub fn enter(py: Python<'_>) -> Res<()> {
    let first = HOOK.with(py, |h| {
        h.users += 1;
        h.users == 1
    });
    hook_state::enter();
    if first {
        frame::install::<Frames>().inspect_err(|_| exit(py))?;
    }
    Ok(())
}

/// The evaluator of frames under the hook.
struct Frames;

impl Evaluator for Frames {
    #[inline]
    fn active() -> bool {
        active()
    }
    #[inline]
    fn evaluate(frame: Frame) -> FrameAction {
        evaluate(frame)
    }
    fn taken_away(py: Python<'_>) {
        if HOOK.with(py, |h| h.users > 0) {
            // It was installed before, so nothing can fail here.
            let _ = frame::install::<Frames>();
        }
    }
}

pub fn exit(py: Python<'_>) {
    if !hook_state::leave() {
        return;
    }
    let last = HOOK.with(py, |h| {
        h.users -= 1;
        h.users == 0
    });
    if last {
        frame::uninstall();
    }
}

/// A callback with its own generation of answers.
pub struct Source {
    callback: Owned,
    generation: u64,
}

/// FrameHook(callback): while an entry with this hook runs, `callback(code, function)` returns a CompiledFunction or
/// None.
#[pyclass(frozen, weakref, module = "pycompiler._native")]
pub struct FrameHook(GilCell<Option<Rc<Source>>>);

#[pymethods]
impl FrameHook {
    #[new]
    fn new(callback: &Bound<'_, PyAny>) -> PyResult<FrameHook> {
        let py = callback.py();
        let callback = Obj::of(callback);
        if !callback.is_callable() {
            return Err(type_error("FrameHook(callback): callback must be callable").into());
        }
        let generation = HOOK.with(py, |h| {
            h.given += 1;
            h.given
        });
        Ok(FrameHook(GilCell::new(Some(Rc::new(Source { callback: callback.own(), generation })))))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0
            .try_read(collector(&visit), |s| s.as_ref().map_or(Ok(()), |s| visit_obj(&visit, s.callback.get())))
            .unwrap_or(Ok(()))
    }

    fn __clear__(&self, py: Python<'_>) {
        drop(self.0.replace(py, None));
    }
}

impl FrameHook {
    /// None after the garbage collector cleared the hook.
    pub fn source(&self, py: Python<'_>) -> Option<Rc<Source>> {
        self.0.read(py, |s| s.clone())
    }
}

/// While this value is alive, the hook is on and uses this source.
pub struct ContextScope<'py>(Python<'py>);

impl<'py> ContextScope<'py> {
    pub fn new(py: Python<'py>, source: Rc<Source>) -> Res<ContextScope<'py>> {
        enter(py)?;
        CURRENT.with(|c| c.borrow_mut().push(source));
        Ok(ContextScope(py))
    }
}

impl Drop for ContextScope<'_> {
    fn drop(&mut self) {
        let left = CURRENT.with(|c| c.borrow_mut().pop());
        drop(left);
        exit(self.0);
    }
}

/// The generation whose answers count in this thread now.
#[inline]
fn generation(py: Python<'_>) -> u64 {
    CURRENT.with(|c| c.borrow().last().map(|s| s.generation)).unwrap_or_else(|| HOOK.read(py, |h| h.generation))
}

fn callback(py: Python<'_>) -> Option<Owned> {
    CURRENT.with(|c| c.borrow().last().map(|s| s.callback.clone())).or_else(|| HOOK.read(py, |h| h.callback.clone()))
}

/// While this value is alive, the hook ignores the next frame of `code` in this thread.
pub struct HookExemption(usize);

impl HookExemption {
    #[inline]
    pub fn new(code: Obj) -> Option<HookExemption> {
        active().then(|| HookExemption(PASS.with(|p| p.replace(code.id()))))
    }
}

impl Drop for HookExemption {
    fn drop(&mut self) {
        PASS.with(|p| p.set(self.0));
    }
}

/// Excludes a generated code object: no callback is called for it.
pub fn never(code: Obj) {
    frame::remember(code, FOR_EVER, None);
}

const OPTIMIZED: i64 = 0x1;
const NEWLOCALS: i64 = 0x2;
const SUSPENDABLE: i64 = 0x20 | 0x80 | 0x100 | 0x200; // generators and coroutines of all kinds

fn is_function_code(code: Obj) -> bool {
    match code.own().attr(c"co_flags").and_then(|f| f.as_i64()) {
        Ok(flags) => flags & (OPTIMIZED | NEWLOCALS) == OPTIMIZED | NEWLOCALS && flags & SUSPENDABLE == 0,
        Err(_) => {
            clear_error();
            false
        }
    }
}

/// Calls the callback for a code object seen for the first time.
#[inline(never)]
fn ask(frame: &Frame, generation: u64) -> Option<Owned> {
    let code = frame.code();
    let callback = callback(code.py())?;
    let mut compiled = None;
    if is_function_code(code) {
        // Paused until the end, because reports about a broken callback run Python code too.
        pause();
        match callback.call(&[code, frame.function()], None) {
            Ok(c) if c.get().is_none() => {}
            Ok(c) if callable::state::<Compiled>(c.get()).is_some() => compiled = Some(c),
            Ok(c) => {
                type_error(&format!(
                    "the frame hook's callback must return a CompiledFunction or None, not {}",
                    c.repr()
                ));
                frame::write_unraisable(callback.get());
            }
            // A broken callback must not break the user's call: the interpreter runs the frame.
            Err(_) if is_error() && !is_shortage() => frame::write_unraisable(callback.get()),
            Err(_) => {
                clear_error();
                resume();
                return None; // the callback gave no answer
            }
        }
        resume();
    }
    frame::remember(code, generation, compiled.as_ref().map(|c| c.get()));
    compiled
}

/// Decides how a frame runs.  Called when `active()`.
#[inline]
fn evaluate(frame: Frame) -> FrameAction {
    let code = frame.code();
    if PASS.with(|p| p.get() == code.id()) {
        PASS.with(|p| p.set(0));
        return FrameAction::Default;
    }
    let generation = generation(code.py());
    let compiled = match frame::remembered(code, generation, FOR_EVER) {
        CachedAnswer::Nothing => None,
        CachedAnswer::Compiled(compiled) => Some(compiled),
        CachedAnswer::Unknown => ask(&frame, generation),
    };
    match compiled {
        None => FrameAction::Default,
        Some(compiled) => compiled::frame(compiled.get(), frame),
    }
}
