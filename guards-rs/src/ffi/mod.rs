//! The only unsafe code of the engine: small wrappers around the C interfaces of CPython and torch.
//!
//! SAFETY comments refer to these rules by name.  Every wrapper rests on them:
//! - *gil*: the calling thread holds the GIL.  CPython slots, PyO3 methods and the frame hook are the only entries, and
//!   all of them hold it.  The two places that release the GIL say so.
//! - *live*: an `Obj<'a>` is borrowed, and its object lives for `'a`: a reference to the holder (an `Owned`, the caller's
//!   arguments) lasts as long.  What was read from a container has the container's lifetime.  Code could drop such an
//!   item earlier, but none runs meanwhile (*quiet*).
//! - *stored*: a `Stored` is an `Obj` whose lifetime the compiler cannot see, because a structure keeps it beside its
//!   owner or a proof that it lives.  The structure's comment names them.  There are five: a tree's steps (`guard::Build`),
//!   a walk (`guard::GuardWalk`), a recording (`guard::fast`), a call's locals (`signature`), an entry's template.
//! - *quiet*: methods of `Obj` run no Python code, whatever the object is.  They run no code of the user (`__eq__`,
//!   `__hash__`, `__getattr__`, `__len__`, …), no garbage collection and no other thread.  An operation that may run
//!   such code is a method of `Owned` (`python.rs`) and returns an `Owned`.  Borrowing ends there: later code must own
//!   the objects it uses.
//!
//! Nothing here names a module outside `ffi`.  A Python type or the evaluation function calls upwards through a trait
//! that the upper module implements: `callable::Callable`, `aten::pytype::Executable`, `frame::Evaluator`.
//!
//! Reading order:
//! - `object.rs`, `access.rs`, `python.rs`: references, and operations on them;
//! - `caught.rs`, `shortage.rs`, `sync.rs`, `stack.rs`: panics, memory that is short, locks, the C stack;
//! - `callable.rs`, `tailcall.rs`, `frame.rs`: calls;
//! - `words.rs`, `dict_events.rs`, `dict_probe.rs`, `dict_keys.rs`, `mro.rs`: proofs that objects are unchanged;
//! - `torch.rs`, `tensor_words.rs`, `state.rs`, `profiling.rs`: torch, as guards and calls read it;
//! - `aten/`, `cuda.rs`, `cublas.rs`, `plan_call.rs`: torch and GPUs, as plans use them.

#![allow(unsafe_code)]

mod access;
pub mod aten;
pub mod callable;
mod caught;
pub mod class;
pub mod convolution;
pub mod cublas;
pub mod cuda;
mod depthwise;
pub mod dict_events;
mod dict_keys;
pub mod dict_probe;
pub mod frame;
pub mod mro;
pub mod object;
pub mod plan_call;
pub mod product;
pub mod profiling;
mod python;
pub mod shortage;
pub mod stack;
pub mod state;
pub mod sync;
pub mod tailcall;
pub mod team;
pub mod tensor_words;
pub mod torch;
pub mod words;

pub use access::{MayRunPython, Quiet};
pub use dict_keys::NoCollector;
pub use object::{collector, visit_obj, Obj, Owned, Raised, Res, Stored};
