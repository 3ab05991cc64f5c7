//! Memory for buffers that only kernels see: 64-byte aligned blocks, kept for the next call.
//!
//! In: a size in bytes.  Out: a `Scratch` that goes back to a pool of the process when dropped, so that the forward and
//! backward plan of a model, and all plans of a program, share it.  At most `KEEP` bytes wait in the pool.

use std::alloc::{alloc, dealloc, Layout};
use std::sync::{Mutex, PoisonError};

use super::{Failure, Outcome};

const ALIGN: usize = 64;
const KEEP: usize = 64 << 20;
/// A block serves requests down to this fraction of its size.
const WASTE: usize = 4;

struct Block {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: a block is plain memory with one owner.
unsafe impl Send for Block {}

struct Pool {
    blocks: Vec<Block>,
    bytes: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { blocks: Vec::new(), bytes: 0 });

/// A block on loan.
pub struct Scratch(Block);

fn layout(bytes: usize) -> Outcome<Layout> {
    Layout::from_size_align(bytes, ALIGN).map_err(|_| Failure(format!("a scratch of {bytes} bytes is too large")))
}

impl Scratch {
    pub fn take(bytes: usize) -> Outcome<Scratch> {
        {
            let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |b: &Block| b.bytes >= bytes && b.bytes / WASTE <= bytes.max(4096);
            if let Some(i) = pool.blocks.iter().rposition(fits) {
                let block = pool.blocks.swap_remove(i);
                pool.bytes -= block.bytes;
                return Ok(Scratch(block));
            }
        }
        let bytes = bytes.max(1).next_multiple_of(4096);
        // SAFETY: the size is not zero.
        let at = unsafe { alloc(layout(bytes)?) };
        if at.is_null() {
            return Err(Failure(format!("out of memory: a scratch of {bytes} bytes was asked for")));
        }
        Ok(Scratch(Block { at, bytes }))
    }

    pub fn address(&self) -> usize {
        self.0.at as usize
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let (at, bytes) = (self.0.at, self.0.bytes);
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.bytes + bytes <= KEEP {
            pool.bytes += bytes;
            pool.blocks.push(Block { at, bytes });
            return;
        }
        drop(pool);
        if let Ok(layout) = layout(bytes) {
            // SAFETY: allocated by `take` with this layout and not in the pool.
            unsafe { dealloc(at, layout) };
        }
    }
}
