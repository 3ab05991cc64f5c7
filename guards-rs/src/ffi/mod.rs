//! The only unsafe code of the engine: CPython's and torch's C interfaces behind small wrappers.
//!
//! Rules that every wrapper rests on (SAFETY comments refer to them by name):
//! - *gil*: the calling thread holds the GIL.  Everything here is reached from CPython slots, PyO3 methods or the
//!   frame hook, which all hold it; the two places that release it say so.
//! - *live*: an `Obj` is borrowed.  Whoever makes one guarantees that a holder (the caller's arguments, a container
//!   that was just read, a cache entry) outlives its use; whoever runs code that may drop holders takes an `Owned`.

#![allow(unsafe_code)]

mod access;
pub mod aten;
pub mod callable;
pub mod frame;
pub mod object;
pub mod plan_call;
pub mod stack;
pub mod sync;
pub mod tailcall;
pub mod tensor_words;
pub mod torch;
pub mod words;

pub use object::{visit_obj, Obj, Owned, Raised, Res};
