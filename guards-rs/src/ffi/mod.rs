//! The only unsafe code of the engine: CPython's and torch's C interfaces behind small wrappers.
//!
//! Rules that every wrapper rests on (SAFETY comments refer to them by name):
//! - *gil*: the calling thread holds the GIL.  Everything here is reached from CPython slots, PyO3 methods or the
//!   frame hook, which all hold it; the two places that release it say so.
//! - *live*: an `Obj` is borrowed.  Whoever makes one guarantees that a holder (the caller's arguments, a container
//!   that was just read, a cache entry) outlives its use.
//! - *quiet*: methods of `Obj` run no Python code, whatever the object is: neither the user's (`__eq__`, `__hash__`,
//!   `__getattr__`, `__len__` …) nor the collector's, and no other thread's.  What may run any is a method of `Owned`
//!   (`python.rs`) and gives an `Owned`: borrowing ends there, and who goes on owns what it goes on with.
//!
//! The ground floor calls nobody: nothing here names a module above.  What a Python type or the evaluation function calls up
//! is a trait that its owner implements: `callable::Callable`, `aten::pytype::Executable`, `frame::Evaluator`.

#![allow(unsafe_code)]

mod access;
pub mod aten;
pub mod callable;
mod caught;
pub mod class;
pub mod cuda;
pub mod dict_events;
mod dict_keys;
pub mod dict_probe;
pub mod frame;
pub mod mro;
pub mod object;
pub mod plan_call;
pub mod profiling;
mod python;
pub mod stack;
pub mod state;
pub mod sync;
pub mod tailcall;
pub mod tensor_words;
pub mod torch;
pub mod words;

pub use access::{MayRunPython, Quiet};
pub use dict_keys::NoCollector;
pub use object::{visit_obj, Obj, Owned, Raised, Res};
