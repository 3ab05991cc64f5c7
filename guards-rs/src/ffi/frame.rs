//! PEP 523: the interpreter frame of each supported CPython, and the evaluation function that the engine installs.
//!
//! A frame that the engine answers itself must be cleared exactly once.  On 3.11 the caller of the evaluation function
//! (`_PyEval_Vector`) clears it.  From 3.12 on the evaluation function must do so, but CPython exports no function for
//! it.  So the default function finishes the frame: it executes one RETURN_VALUE with our result on the frame's stack.
//! For an exception, it is entered as by `generator.throw()`.

use super::caught;
use super::object::{import, Obj, Owned, Raised, Res};
use super::stack;
use pyo3::ffi::*;
use pyo3::Python;
use smallvec::SmallVec;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU16, Ordering};

/// A reference in a frame, or null.  From 3.14 on, its low bits say whether the frame owns it (pycore_stackref.h).
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Slot(usize);

impl Slot {
    const TAG: usize = if cfg!(Py_3_14) { 3 } else { 0 };

    #[inline]
    fn object(self) -> *mut PyObject {
        (self.0 & !Slot::TAG) as *mut PyObject
    }

    #[cfg(all(Py_3_12, not(Py_3_14)))]
    fn of(value: Owned) -> Slot {
        Slot(value.into_ptr() as usize)
    }

    /// Immortal objects are tagged as borrowed.
    #[cfg(Py_3_14)]
    fn of(value: Owned) -> Slot {
        let p = value.into_ptr();
        // SAFETY: *live*: the reference is handed to the slot; the flags are in the object's header.
        Slot(p as usize | usize::from(unsafe { (*p).ob_refcnt.refcnt_and_flags.ob_flags } & 1))
    }
}

// pycore_frame.h (3.14: pycore_interpframe_structs.h), _PyInterpreterFrame.
#[cfg(not(Py_3_12))]
#[repr(C)]
struct RawFrame {
    function: Slot,
    globals: *mut PyObject,
    builtins: *mut PyObject,
    locals: *mut PyObject,
    code: Slot,
    frame_object: *mut PyObject,
    previous: *mut RawFrame,
    instruction: *const u16,
    stacktop: c_int,
    is_entry: bool,
    owner: u8,
    localsplus: [Slot; 1],
}

#[cfg(Py_3_12)]
#[repr(C)]
struct RawFrame {
    code: Slot,
    previous: *mut RawFrame,
    function: Slot,
    globals: *mut PyObject,
    builtins: *mut PyObject,
    locals: *mut PyObject,
    frame_object: *mut PyObject,
    instruction: *const u16,
    #[cfg(not(Py_3_14))]
    stacktop: c_int,
    #[cfg(Py_3_14)]
    stackpointer: *mut Slot,
    return_offset: u16,
    owner: u8,
    #[cfg(Py_3_14)]
    visited: u8,
    localsplus: [Slot; 1],
}

#[cfg(Py_3_12)]
impl RawFrame {
    /// Pushes a value onto the frame's stack.
    #[cfg(not(Py_3_14))]
    unsafe fn push(&mut self, value: Owned) {
        *self.localsplus.as_mut_ptr().add(self.stacktop as usize) = Slot::of(value);
        self.stacktop += 1;
    }

    #[cfg(Py_3_14)]
    unsafe fn push(&mut self, value: Owned) {
        *self.stackpointer = Slot::of(value);
        self.stackpointer = self.stackpointer.add(1);
    }
}

const OWNED_BY_THREAD: u8 = 0;

type EvalFunction = unsafe extern "C" fn(*mut PyThreadState, *mut RawFrame, c_int) -> *mut PyObject;

// Private functions of CPython, exported by every supported version.  3.12 renamed the last three.
extern "C" {
    fn _PyEval_EvalFrameDefault(thread: *mut PyThreadState, frame: *mut RawFrame, throw: c_int) -> *mut PyObject;
    fn _PyInterpreterState_GetEvalFrameFunc(interpreter: *mut PyInterpreterState) -> EvalFunction;
    fn _PyInterpreterState_SetEvalFrameFunc(interpreter: *mut PyInterpreterState, f: EvalFunction);
    #[cfg_attr(Py_3_12, link_name = "PyUnstable_Eval_RequestCodeExtraIndex")]
    fn _PyEval_RequestCodeExtraIndex(free: unsafe extern "C" fn(*mut c_void)) -> Py_ssize_t;
    #[cfg_attr(Py_3_12, link_name = "PyUnstable_Code_GetExtra")]
    fn _PyCode_GetExtra(code: *mut PyObject, index: Py_ssize_t, extra: *mut *mut c_void) -> c_int;
    #[cfg_attr(Py_3_12, link_name = "PyUnstable_Code_SetExtra")]
    fn _PyCode_SetExtra(code: *mut PyObject, index: Py_ssize_t, extra: *mut c_void) -> c_int;
}

/// The frame of a Python function at its first instruction.  Alive while its evaluation function runs.
#[derive(Clone, Copy)]
pub struct Frame(*mut RawFrame);

impl Frame {
    #[inline]
    pub fn code(&self) -> Obj<'_> {
        // SAFETY: a frame that is evaluated holds its code.
        unsafe { Obj::borrow((*self.0).code.object()) }
    }
    pub fn globals(&self) -> Obj<'_> {
        // SAFETY: as for code.
        unsafe { Obj::borrow((*self.0).globals) }
    }
    pub fn function(&self) -> Obj<'_> {
        // SAFETY: frames owned by a thread hold their function.
        unsafe { Obj::borrow((*self.0).function.object()) }
    }
    /// The i-th parameter.  `i` is below the number of parameters of the code.
    pub fn parameter(&self, i: usize) -> Option<Obj<'_>> {
        // SAFETY: parameters are the first of the frame's local slots.
        unsafe { Obj::borrow_opt((*(*self.0).localsplus.as_ptr().add(i)).object()) }
    }
}

/// How to continue with a frame.
pub enum FrameAction {
    /// The interpreter runs the frame.
    Default,
    Done(Res<Owned>),
}

/// Decides about frames.
pub trait Evaluator: 'static {
    /// Whether the evaluator handles this thread's frames now.
    fn active() -> bool;
    fn evaluate(frame: Frame) -> FrameAction;
    /// The evaluation function was removed for a while.  Installs it again if it is still needed.
    fn taken_away(py: Python<'_>);
}

/// The evaluation function that was in place before ours, and our own.
static PREVIOUS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static OURS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// The two instructions of a returning frame: a filler and a RETURN_VALUE.
static RETURN: [AtomicU16; 2] = [AtomicU16::new(0), AtomicU16::new(0)];

thread_local! {
    /// The last frame that this thread passed to another library's evaluation function and that still runs.
    static HANDED_ON: Cell<*mut RawFrame> = const { Cell::new(null_mut()) };
}

unsafe fn default(thread: *mut PyThreadState, frame: *mut RawFrame, throw: c_int) -> *mut PyObject {
    let previous = PREVIOUS.load(Ordering::Relaxed);
    if previous as *const () == _PyEval_EvalFrameDefault as *const () {
        return _PyEval_EvalFrameDefault(thread, frame, throw);
    }
    // Another library may install its function in front of ours again, after ours was installed in front of it.  Then
    // it passes the frame back to us.
    let before = HANDED_ON.replace(frame);
    let result = if before == frame {
        _PyEval_EvalFrameDefault(thread, frame, throw)
    } else {
        std::mem::transmute::<*mut c_void, EvalFunction>(previous)(thread, frame, throw)
    };
    HANDED_ON.set(before);
    result
}

#[cfg(not(Py_3_12))]
unsafe fn finish(_: *mut PyThreadState, _: *mut RawFrame, result: Res<Owned>) -> *mut PyObject {
    result.map_or(null_mut(), Owned::into_ptr)
}

#[cfg(Py_3_12)]
unsafe fn finish(thread: *mut PyThreadState, frame: *mut RawFrame, result: Res<Owned>) -> *mut PyObject {
    match result {
        Ok(value) => {
            let f = &mut *frame;
            f.push(value);
            // 3.12 stores the instruction before the next one; later versions store the next one.
            let at = if cfg!(Py_3_13) { 1 } else { 0 };
            f.instruction = RETURN[at].as_ptr();
            default(thread, frame, 0)
        }
        Err(Raised) => {
            // A frame before its first instruction does not appear in tracebacks.  On 3.12 it already points there.
            if cfg!(Py_3_13) {
                let f = &mut *frame;
                f.instruction = f.instruction.wrapping_sub(1);
            }
            default(thread, frame, 1)
        }
    }
}

unsafe extern "C" fn evaluate<E: Evaluator>(
    thread: *mut PyThreadState,
    frame: *mut RawFrame,
    throw: c_int,
) -> *mut PyObject {
    // A frame that another library's function passes back to us is answered already, and may be finished.
    if throw != 0 || (*frame).owner != OWNED_BY_THREAD || !E::active() || HANDED_ON.get() == frame {
        return default(thread, frame, throw);
    }
    if stack::is_low() {
        return without_hook::<E>(thread, frame);
    }
    match caught::or_raise(FrameAction::Done(Err(Raised)), || E::evaluate(Frame(frame))) {
        FrameAction::Default => default(thread, frame, throw),
        FrameAction::Done(result) => finish(thread, frame, result),
    }
}

/// If recursion has used up the C stack, the frame runs without the hook.  Calls from Python to Python then use no C
/// stack.
#[cold]
unsafe fn without_hook<E: Evaluator>(thread: *mut PyThreadState, frame: *mut RawFrame) -> *mut PyObject {
    uninstall();
    let result = default(thread, frame, 0);
    caught::or_report((), || E::taken_away(super::sync::held()));
    result
}

/// Installs our evaluation function, which calls `E`, in front of the current one.
pub fn install<E: Evaluator>() -> Res<()> {
    if RETURN[1].load(Ordering::Relaxed) == 0 {
        let opmap = import(c"opcode")?.attr(c"opmap")?;
        let code = opmap.dict_get(&Owned::interned("RETURN_VALUE")?)?.ok_or(Raised)?.as_i64()?;
        RETURN[0].store(code as u16, Ordering::Relaxed);
        RETURN[1].store(code as u16, Ordering::Relaxed);
    }
    // SAFETY: *gil*; the interpreter of this thread.
    unsafe {
        let interpreter = PyInterpreterState_Get();
        let now = _PyInterpreterState_GetEvalFrameFunc(interpreter);
        if now as *mut c_void != OURS.load(Ordering::Relaxed) {
            let ours: EvalFunction = evaluate::<E>;
            OURS.store(ours as *mut c_void, Ordering::Relaxed);
            PREVIOUS.store(now as *mut c_void, Ordering::Relaxed);
            _PyInterpreterState_SetEvalFrameFunc(interpreter, ours);
        }
    }
    Ok(())
}

/// Removes our evaluation function, unless another library has installed one in front of it.
pub fn uninstall() {
    // SAFETY: *gil*; PREVIOUS holds the evaluation function found by `install`.
    unsafe {
        let interpreter = PyInterpreterState_Get();
        let previous = PREVIOUS.load(Ordering::Relaxed);
        let now = _PyInterpreterState_GetEvalFrameFunc(interpreter) as *mut c_void;
        if now == OURS.load(Ordering::Relaxed) && !previous.is_null() {
            _PyInterpreterState_SetEvalFrameFunc(
                interpreter,
                std::mem::transmute::<*mut c_void, EvalFunction>(previous),
            );
        }
    }
}

/// The answers of callbacks for a code object, stored in the code object and freed with it.
///
/// CompiledFunctions are referenced weakly: a code object may live as long as the process, and the garbage collector
/// does not look into it.  The callback that answered keeps them alive.
#[derive(Default)]
struct CachedAnswers {
    /// (generation of the callback, weak reference to its CompiledFunction or None), latest first.
    answers: SmallVec<[(u64, Option<Owned>); 1]>,
}

/// At most this many callbacks' answers are stored for one code object.
const MAX_ANSWERS: usize = 4;

pub enum CachedAnswer {
    /// The callback was not called yet, or the CompiledFunction is gone.
    Unknown,
    Nothing,
    Compiled(Owned),
}

static EXTRA: AtomicIsize = AtomicIsize::new(-1);

unsafe extern "C" fn free_remembered(p: *mut c_void) {
    if !p.is_null() {
        caught::or_report((), || drop(Box::from_raw(p.cast::<CachedAnswers>())));
    }
}

fn extra_index() -> Py_ssize_t {
    let known = EXTRA.load(Ordering::Relaxed);
    if known >= 0 {
        return known;
    }
    // SAFETY: *gil*; -1 when there is no index left, which the callers handle.
    let index = unsafe { _PyEval_RequestCodeExtraIndex(free_remembered) };
    EXTRA.store(index, Ordering::Relaxed);
    index
}

/// The CachedAnswers of a code object.  Null if it has none, or if the interpreter has no index left.
fn extra(code: Obj) -> *mut CachedAnswers {
    let mut p = null_mut();
    // SAFETY: *gil*, *live*; the extra is null or a CachedAnswers that `remember` stored.
    unsafe {
        if extra_index() < 0 || _PyCode_GetExtra(code.ptr(), extra_index(), &mut p) < 0 {
            PyErr_Clear();
            return null_mut();
        }
    }
    p.cast()
}

/// The answer for `code` of the callback of this generation, or of a callback that answered for all generations
/// (`for_ever`).
#[inline]
pub fn remembered(code: Obj, generation: u64, for_ever: u64) -> CachedAnswer {
    // SAFETY: see `extra`; nothing below runs Python code while the reference is used.
    let Some(known) = (unsafe { extra(code).as_ref() }) else { return CachedAnswer::Unknown };
    let answer = known.answers.iter().find(|(g, _)| *g == generation || *g == for_ever);
    match answer {
        None => CachedAnswer::Unknown,
        Some((_, None)) => CachedAnswer::Nothing,
        Some((_, Some(reference))) => match reference.get().weakref_target() {
            Some(compiled) => CachedAnswer::Compiled(compiled.own()),
            None => CachedAnswer::Unknown,
        },
    }
}

/// Stores an answer.  If the interpreter has no room for it, the answer is lost and the callback is called again.
pub fn remember(code: Obj, generation: u64, compiled: Option<Obj>) {
    let reference = match compiled.map(super::words::weakref) {
        Some(None) => return,
        Some(Some(reference)) => Some(reference),
        None => None,
    };
    if extra(code).is_null() {
        let p = Box::into_raw(Box::<CachedAnswers>::default());
        // SAFETY: *gil*, *live*; on success the code object owns `p`, otherwise it is freed here.
        unsafe {
            if extra_index() < 0 || _PyCode_SetExtra(code.ptr(), extra_index(), p.cast()) < 0 {
                PyErr_Clear();
                drop(Box::from_raw(p));
                return;
            }
        }
    }
    let mut forgotten = Vec::new();
    // SAFETY: see `extra`; forgotten answers are dropped after the last use of the reference.
    if let Some(known) = unsafe { extra(code).as_mut() } {
        while let Some(i) = known.answers.iter().position(|(g, _)| *g == generation) {
            forgotten.push(known.answers.remove(i));
        }
        forgotten.extend(known.answers.drain(MAX_ANSWERS.min(known.answers.len())..));
        known.answers.insert(0, (generation, reference));
    }
    drop(forgotten);
}

/// Reports the pending exception where it cannot propagate.
pub fn write_unraisable(context: Obj) {
    // SAFETY: *gil*, *live*.
    unsafe { PyErr_WriteUnraisable(context.ptr()) }
}
