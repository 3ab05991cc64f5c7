//! Unsafe code.
#![allow(unsafe_code)]
pub mod aten;
