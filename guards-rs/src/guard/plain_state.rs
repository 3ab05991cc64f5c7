//! `PlainState`: a cached query about torch's state.  Comparing words of that state repeats a negative answer.

use crate::ffi::object::runtime_error;
use crate::ffi::state::{StateSymbols, Words};
use crate::ffi::sync::GilCell;
use crate::ffi::{collector, visit_obj, Obj, Owned, Res};
use crate::tensor_view::torch;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

/// PlainState(is_unusual): calling it gives `is_unusual()`.  The function must depend only on grad mode, autocast,
/// modes and transforms.  While the state equals the state of the last False, the function is not called.
#[pyclass(frozen, weakref, module = "pycompiler._native")]
pub struct PlainState {
    question: GilCell<Option<Owned>>,
    symbols: Option<Box<StateSymbols>>,
    plain: GilCell<Option<Words>>,
}

#[pymethods]
impl PlainState {
    #[new]
    fn new(is_unusual: &Bound<'_, PyAny>) -> PyResult<Self> {
        let symbols = torch(is_unusual.py())?.state.map(Box::new);
        Ok(PlainState { question: GilCell::new(Some(Obj::of(is_unusual).own())), symbols, plain: GilCell::new(None) })
    }

    fn __call__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.is_unusual(py)?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.question
            .try_read(collector(&visit), |q| q.as_ref().map_or(Ok(()), |q| visit_obj(&visit, q.get())))
            .unwrap_or(Ok(()))
    }

    fn __clear__(&self, py: Python<'_>) {
        drop(self.question.replace(py, None));
    }
}

impl PlainState {
    pub fn is_unusual(&self, py: Python<'_>) -> Res<bool> {
        let now = self.symbols.as_ref().map(|symbols| symbols.read());
        if now.is_some() && self.plain.read(py, |plain| *plain) == now {
            return Ok(false);
        }
        let cleared = || runtime_error("this PlainState was cleared by the garbage collector");
        let question = self.question.read(py, |q| q.clone()).ok_or_else(cleared)?;
        let unusual = question.call(&[], None)?.is_true()?;
        if let Some(words) = now.filter(|words| !unusual && StateSymbols::are_complete(words)) {
            self.plain.replace(py, Some(words));
        }
        Ok(unusual)
    }
}
