//! Weights in an operator's own layout, kept across calls.
//!
//! In: an `ir.plan.Pack`.  Out: `Pack`, whose `run` puts the packed weight into its slot.  The packed weight of an earlier
//! call is used if the weight has the same bytes.  A hash tells: writes through `.data` or NumPy leave no other trace.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use super::argument::Reader;
use super::aten::Aten;
use super::{Frame, StepError};
use crate::ffi::aten::{self as torch, Tensor};

/// Equal graphs share a plan, so several weights are kept: this many, the last packed.
const MOST_KEPT: usize = 16;

pub struct Pack {
    pub slot: usize,
    pub weight: usize,
    call: Aten,
    /// Whether equal addresses mean equal bytes.
    frozen: bool,
    kept: Mutex<Vec<Kept>>,
}

/// A packed weight, and the weight that it was packed from.
struct Kept {
    address: usize,
    hash: u64,
    packed: Tensor,
}

impl Pack {
    pub fn build(reader: &Reader<'_>, step: &Bound<'_, PyAny>) -> PyResult<Pack> {
        Ok(Pack {
            slot: step.getattr("slot")?.extract()?,
            weight: step.getattr("weight")?.extract()?,
            call: Aten::build(reader, &step.getattr("call")?)?,
            frozen: step.getattr("frozen")?.extract()?,
            kept: Mutex::new(Vec::new()),
        })
    }

    /// Fills the slot.
    pub fn run(&self, frame: &mut Frame<'_, '_>) -> Result<(), StepError> {
        let weight = frame.handle(self.weight)?;
        if !weight.is_dense() {
            return self.call.call(frame);
        }
        frame.release_gil_for(weight.numel() as u64)?;
        frame.steady(&[self.weight])?;
        let weight = frame.handle(self.weight)?;
        let address = weight.data_ptr()?;
        let hash = if self.frozen {
            0
        } else {
            let threads = *frame.threads.get_or_insert_with(torch::num_threads);
            weight.hash(usize::try_from(threads).unwrap_or(1))?
        };
        if let Some(packed) = self.packed(address, hash)? {
            frame.fill(self.slot, packed)?;
            return Ok(());
        }
        self.call.call(frame)?;
        let packed = frame.handle(self.slot)?.to_owned()?;
        self.keep(Kept { address, hash, packed });
        Ok(())
    }

    /// The kept weight, if it was packed from the same bytes.
    fn packed(&self, address: usize, hash: u64) -> Result<Option<Tensor>, StepError> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |kept: &&Kept| kept.hash == hash && (!self.frozen || kept.address == address);
        Ok(kept.iter().find(same).map(|kept| kept.packed.handle().to_owned()).transpose()?)
    }

    /// Keeps a packed weight, in the place of the one that was packed from the same address.
    fn keep(&self, packed: Kept) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|other| other.address != packed.address);
        if kept.len() == MOST_KEPT {
            kept.remove(0);
        }
        kept.push(packed);
    }
}
