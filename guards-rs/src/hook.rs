//! The frame hook: frames that a captured frame calls and that could not be inlined.
//!
//! In: `set_frame_hook(callback)`, or an Entry with `frame_hook=FrameHook(callback)`.  While the hook is on in a thread
//! (`enter_hook` .. `exit_hook`, or such an entry runs), each new function frame's code is looked up; an unknown code asks
//! `callback(code, function)` once for a CompiledFunction or None, and the answer is remembered in the code object.  The
//! innermost running entry's callback decides, so that the caches of two compiled callables stay apart.  A frame whose code
//! has a CompiledFunction takes the same way as a direct call: guards, entry, or compilation.
//!
//! The hook is off in a thread while that thread compiles, and for the one frame that the engine itself runs eagerly.

use crate::compiled::{self, Compiled};
use crate::ffi::frame::{self, Answer, Answered, Evaluator, Frame};
use crate::ffi::object::{clear_error, is_error, is_shortage, type_error};
use crate::ffi::sync::GilCell;
use crate::ffi::{callable, visit_obj, Obj, Owned, Res};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

#[derive(Default)]
struct Hook {
    callback: Option<Owned>,
    /// Which callback's answers count; what another one said is asked again.
    generation: u64,
    /// Generations given so far.
    given: u64,
    /// Threads and depths at which the hook is on.
    users: usize,
}

static HOOK: GilCell<Hook> = GilCell::new(Hook { callback: None, generation: 0, given: 0, users: 0 });

/// Stands for every generation.
const FOR_EVER: u64 = u64::MAX;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static PAUSED: Cell<usize> = const { Cell::new(0) };
    /// Sources of the entries that run, the innermost last.
    static CURRENT: RefCell<Vec<Rc<Source>>> = const { RefCell::new(Vec::new()) };
    /// Address of the code whose next frame runs as it is.
    static PASS: Cell<usize> = const { Cell::new(0) };
}

/// Whether the hook looks at this thread's frames now.
#[inline]
pub fn active() -> bool {
    DEPTH.with(|d| d.get() > 0) && PAUSED.with(|p| p.get() == 0)
}

pub fn set_callback(callback: Option<Owned>) -> Res<()> {
    if callback.as_ref().is_some_and(|c| !c.is_callable()) {
        return Err(type_error("set_frame_hook(callback): callback must be callable or None"));
    }
    let old = HOOK.with(|h| {
        h.given += 1;
        h.generation = h.given;
        std::mem::replace(&mut h.callback, callback)
    });
    drop(old);
    Ok(())
}

pub fn enter() -> Res<()> {
    let first = HOOK.with(|h| {
        h.users += 1;
        h.users == 1
    });
    DEPTH.with(|d| d.set(d.get() + 1));
    if first {
        frame::install::<Frames>().inspect_err(|_| exit())?;
    }
    Ok(())
}

/// The frames that the hook sees.
struct Frames;

impl Evaluator for Frames {
    #[inline]
    fn active() -> bool {
        active()
    }
    #[inline]
    fn evaluate(frame: Frame) -> Answer {
        evaluate(frame)
    }
    fn taken_away() {
        if HOOK.with(|h| h.users > 0) {
            // It was installed before, so there is nothing left that could fail.
            let _ = frame::install::<Frames>();
        }
    }
}

pub fn exit() {
    if DEPTH.with(|d| d.get()) == 0 {
        return;
    }
    DEPTH.with(|d| d.set(d.get() - 1));
    let last = HOOK.with(|h| {
        h.users -= 1;
        h.users == 0
    });
    if last {
        frame::uninstall();
    }
}

pub fn pause() {
    PAUSED.with(|p| p.set(p.get() + 1));
}

pub fn resume() {
    PAUSED.with(|p| p.set(p.get().saturating_sub(1)));
}

/// Runs Python code whose frames are none of the program's: the engine's own, and that of graphs.
#[inline]
pub fn paused<T>(f: impl FnOnce() -> T) -> T {
    if !active() {
        return f();
    }
    struct Resume;
    impl Drop for Resume {
        fn drop(&mut self) {
            resume();
        }
    }
    pause();
    let _resume = Resume; // after a panic too
    f()
}

/// A callback with answers of its own.
pub struct Source {
    callback: Owned,
    generation: u64,
}

/// FrameHook(callback): `callback(code, function)` is asked for a CompiledFunction while an entry with this hook runs.
#[pyclass(frozen, weakref, module = "pycompiler._native")]
pub struct FrameHook(GilCell<Option<Rc<Source>>>);

#[pymethods]
impl FrameHook {
    #[new]
    fn new(callback: &Bound<'_, PyAny>) -> PyResult<FrameHook> {
        let callback = Obj::of(callback);
        if !callback.is_callable() {
            return Err(type_error("FrameHook(callback): callback must be callable").into());
        }
        let generation = HOOK.with(|h| {
            h.given += 1;
            h.given
        });
        Ok(FrameHook(GilCell::new(Some(Rc::new(Source { callback: callback.own(), generation })))))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.try_read(|s| s.as_ref().map_or(Ok(()), |s| visit_obj(&visit, s.callback.get()))).unwrap_or(Ok(()))
    }

    fn __clear__(&self) {
        drop(self.0.replace(None));
    }
}

impl FrameHook {
    /// None once the collector cleared it.
    pub fn source(&self) -> Option<Rc<Source>> {
        self.0.read(|s| s.clone())
    }
}

/// The hook is on, and asks this source, while this lives.
pub struct Entered;

impl Entered {
    pub fn new(source: Rc<Source>) -> Res<Entered> {
        enter()?;
        CURRENT.with(|c| c.borrow_mut().push(source));
        Ok(Entered)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let left = CURRENT.with(|c| c.borrow_mut().pop());
        drop(left);
        exit();
    }
}

/// Whose answers count in this thread now.
#[inline]
fn generation() -> u64 {
    CURRENT.with(|c| c.borrow().last().map(|s| s.generation)).unwrap_or_else(|| HOOK.read(|h| h.generation))
}

fn callback() -> Option<Owned> {
    CURRENT.with(|c| c.borrow().last().map(|s| s.callback.clone())).or_else(|| HOOK.read(|h| h.callback.clone()))
}

/// The next frame of `code` in this thread passes the hook, while this lives.
pub struct Passing(usize);

impl Passing {
    #[inline]
    pub fn new(code: Obj) -> Option<Passing> {
        active().then(|| Passing(PASS.with(|p| p.replace(code.id()))))
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        PASS.with(|p| p.set(self.0));
    }
}

/// Generated code is never asked about.
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

/// Asks the callback about a code seen for the first time.
#[inline(never)]
fn ask(frame: &Frame, generation: u64) -> Option<Owned> {
    let code = frame.code();
    let callback = callback()?;
    let mut compiled = None;
    if is_function_code(code) {
        // Paused until the end: reports of a broken callback run Python code as well.
        pause();
        match callback.call(&[code, frame.function()], None) {
            Ok(c) if c.is_none() => {}
            Ok(c) if callable::state::<Compiled>(&c.get()).is_some() => compiled = Some(c),
            Ok(c) => {
                type_error(&format!(
                    "the frame hook's callback must return a CompiledFunction or None, not {}",
                    c.repr()
                ));
                frame::write_unraisable(callback.get());
            }
            // A broken callback must not break the user's call: the frame runs as it is.
            Err(_) if is_error() && !is_shortage() => frame::write_unraisable(callback.get()),
            Err(_) => {
                clear_error();
                resume();
                return None; // it was not answered
            }
        }
        resume();
    }
    frame::remember(code, generation, compiled.as_ref().map(|c| c.get()));
    compiled
}

/// The way of a frame; called when `active()`.
#[inline]
fn evaluate(frame: Frame) -> Answer {
    let code = frame.code();
    if PASS.with(|p| p.get() == code.id()) {
        PASS.with(|p| p.set(0));
        return Answer::Default;
    }
    let generation = generation();
    let compiled = match frame::remembered(code, generation, FOR_EVER) {
        Answered::Nothing => None,
        Answered::Compiled(compiled) => Some(compiled),
        Answered::Unknown => ask(&frame, generation),
    };
    match compiled {
        None => Answer::Default,
        Some(compiled) => compiled::frame(compiled.get(), frame),
    }
}
