//! A product of matrices on a GPU.
//!
//! In: an `ir.plan.GpuProduct`.  Out: `GpuProduct`: a product of `ffi::cublas` with the slots and offsets of its matrices.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::{Frame, StepError};
use crate::ffi::aten::{Failure, Outcome};
use crate::ffi::cublas::{Problem, Product};

pub struct GpuProduct {
    product: Product,
    device: i32,
    /// Left, right, out, workspace and, if there is one, bias.
    pub slots: Box<[usize]>,
    /// Bytes from the start of each slot.
    offsets: Box<[usize]>,
    work: u64,
    text: String,
}

impl GpuProduct {
    pub fn build(step: &Bound<'_, PyAny>) -> PyResult<GpuProduct> {
        let text = step.getattr("label")?.extract::<String>()?;
        let device = step.getattr("device")?.getattr("index")?.extract::<Option<i32>>()?;
        let device = device.ok_or_else(|| PyValueError::new_err(format!("{text} on a device without a number")))?;
        let slots = step.getattr("slots")?.extract::<Vec<usize>>()?;
        let dtype = step.getattr("cuda_dtype")?.extract::<(i32, usize)>()?;
        let offsets = step.getattr("offsets")?.extract::<Vec<usize>>()?;
        let [batch, rows, columns, depth] = step.getattr("sizes")?.extract::<[i64; 4]>()?;
        let (left, right, out) = step.getattr("strides")?.extract::<([i64; 3], [i64; 3], [i64; 2])>()?;
        if !matches!(slots.len(), 4 | 5) || offsets.len() != slots.len() {
            let (n, m) = (slots.len(), offsets.len());
            return Err(PyValueError::new_err(format!(
                "{text} with {n} slots and {m} offsets, expected 4 or 5 of each"
            )));
        }
        if [batch, rows, columns, depth].iter().any(|n| *n < 1) {
            return Err(PyValueError::new_err(format!("{text} of sizes {:?}", [batch, rows, columns, depth])));
        }
        let workspace = step.getattr("workspace")?.extract()?;
        let problem =
            Problem { dtype, batch, rows, columns, depth, left, right, out, has_bias: slots.len() == 5, workspace };
        let product = Product::new(&problem, device);
        let product =
            product.map_err(|Failure(why)| PyRuntimeError::new_err(format!("{text} on cuda:{device}: {why}")))?;
        Ok(GpuProduct {
            product,
            device,
            slots: slots.into(),
            offsets: offsets.into_iter().map(|n| n * dtype.1).collect(),
            work: step.getattr("work")?.extract()?,
            text,
        })
    }

    /// Bytes of workspace for the product's algorithms.
    pub fn workspace(&self) -> Outcome<usize> {
        self.product.workspace()
    }
}

impl GpuProduct {
    /// Starts the product on a stream and does not wait for it.  Addresses: left, right, out, workspace, bias.
    pub fn start(&self, [left, right, out, workspace, bias]: [usize; 5], stream: usize) -> Outcome<()> {
        self.product.start([left, right, out], bias, workspace, stream).map_err(|failure| self.failed(failure))
    }

    #[cold]
    fn failed(&self, Failure(why): Failure) -> Failure {
        Failure(format!("{} on cuda:{}: {why}", self.text, self.device))
    }
}

impl Frame<'_, '_> {
    pub(super) fn start_product(&mut self, step: &GpuProduct) -> Result<(), StepError> {
        let mut at = [0u64; 5];
        for ((address, slot), offset) in at.iter_mut().zip(&step.slots).zip(&step.offsets) {
            *address = (self.ptrs[*slot] + offset) as u64;
        }
        let stream = self.stream_of(step.device, || step.product.stream().map_err(|why| step.failed(why)))?;
        self.add(step.device, stream, step.work, None, &at)
    }
}
