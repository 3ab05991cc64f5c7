//! Native engine of pycompiler.
mod ffi;
mod plan;
use pyo3::prelude::*;

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    plan::register(m)
}
