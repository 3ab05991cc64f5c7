//! Weights in an operator's own layout, kept across calls.
//!
//! In: an `ir.plan.Pack`.  Out: `Pack`, whose `run` puts the packed weight into its slot.  The packed weight of an earlier
//! call is used if the weight has the same bytes.  A hash tells: writes through `.data` or NumPy leave no other trace.

use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::prelude::*;

use super::argument::Reader;
use super::aten::Aten;
use super::{Frame, StepError};
use crate::ffi::aten::{self as torch, BelowAutograd, Failure, Handle, Tensor};

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
    /// The weight itself, if equal addresses mean equal bytes: no other tensor gets its address meanwhile.
    source: Option<Tensor>,
}

impl Kept {
    /// Whether the weight has its address still: `.data =` gives it another one.
    fn stays(&self) -> bool {
        let at = |source: &Tensor| source.handle().data_ptr().is_ok_and(|now| now == self.address);
        self.source.as_ref().is_none_or(at)
    }
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
            frame.fill(self.slot, weight.to_owned()?)?;
            return self.call.call(frame);
        }
        frame.release_gil_for(weight.numel() as u64)?;
        frame.steady(&[self.weight])?;
        let weight = frame.handle(self.weight)?;
        if !weight.is_backed() {
            // oneDNN would read the memory without a check.
            return Err(Failure("a weight has elements, but its data is not allocated yet".into()).into());
        }
        let address = weight.data_ptr()?;
        let threads = *frame.threads.get_or_insert_with(torch::num_threads);
        let hash = |weight: Handle| match self.frozen {
            true => Ok(0),
            false => weight.hash(usize::try_from(threads).unwrap_or(1)),
        };
        if let Some(packed) = self.packed(address, hash(weight)?)? {
            frame.fill(self.slot, packed)?;
            return Ok(());
        }
        // Another thread may write the weight meanwhile: a copy is hashed and packed, so that both belong together.
        let source = self.frozen.then(|| weight.to_owned()).transpose()?;
        let below = BelowAutograd::enter(true);
        let copy = weight.materialised()?;
        drop(below);
        let hash = hash(copy.handle())?;
        frame.fill(self.slot, copy)?;
        self.call.call(frame)?;
        let packed = frame.handle(self.slot)?.to_owned()?;
        self.keep(Kept { address, hash, packed, source });
        Ok(())
    }

    /// The kept weight, if it was packed from the same bytes.
    fn packed(&self, address: usize, hash: u64) -> Result<Option<Tensor>, StepError> {
        let Some(kept) = self.kept() else { return Ok(None) };
        let same = |kept: &&Kept| match &kept.source {
            Some(_) => kept.address == address && kept.stays(),
            None => kept.hash == hash,
        };
        Ok(kept.iter().find(same).map(|kept| kept.packed.handle().to_owned()).transpose()?)
    }

    /// Keeps a packed weight, in the place of the one that was packed from the same address.  Those whose weight has moved
    /// are dropped: it may come back to the address with other bytes.
    fn keep(&self, packed: Kept) {
        let Some(mut kept) = self.kept() else { return };
        // dropped after the lock is released
        let stays = |other: &Kept| other.address != packed.address && other.stays();
        let (now, mut old): (Vec<_>, Vec<_>) = std::mem::take(&mut *kept).into_iter().partition(stays);
        *kept = now;
        if kept.len() == MOST_KEPT {
            old.push(kept.remove(0));
        }
        kept.push(packed);
        drop(kept);
    }

    /// The kept weights.  None while another thread reads them: also in a process that was forked meanwhile.
    fn kept(&self) -> Option<MutexGuard<'_, Vec<Kept>>> {
        match self.kept.try_lock() {
            Ok(kept) => Some(kept),
            Err(TryLockError::Poisoned(kept)) => Some(kept.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
