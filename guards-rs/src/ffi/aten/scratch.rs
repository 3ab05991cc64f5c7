//! Memory for buffers that only kernels use: 64-byte aligned blocks, reused by later calls.
//!
//! In: a size in bytes.  Out: a `Scratch`, which returns to a pool of the process when dropped.  All plans of a program
//! share the pool, including the forward and backward plan of a model.  At most `KEEP` bytes are unused in the pool.

use std::alloc::{alloc, dealloc, Layout};
use std::sync::Mutex;

use super::{Failure, Outcome};

const ALIGN: usize = 64;
const PAGE: usize = 4096;
const KEEP: usize = 64 << 20;
/// A block serves requests of at least this fraction of its size.
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

/// A block taken from the pool or the allocator.
pub struct Scratch(Option<Block>);

fn whole_pages(bytes: usize) -> Outcome<usize> {
    let whole = bytes.max(1).checked_next_multiple_of(PAGE);
    whole.ok_or_else(|| Failure(format!("a scratch of {bytes} bytes: the limit is {}", isize::MAX)))
}

fn layout(bytes: usize) -> Outcome<Layout> {
    Layout::from_size_align(bytes, ALIGN)
        .map_err(|_| Failure(format!("a scratch of {bytes} bytes: the limit is {}", isize::MAX)))
}

fn release(block: Block) {
    if let Ok(layout) = layout(block.bytes) {
        // SAFETY: allocated by `take` with this layout; the block is owned here and dropped with this call.
        unsafe { dealloc(block.at, layout) };
    }
}

impl Pool {
    /// The most recently returned block that fits; its memory is most likely cached.
    fn take(&mut self, bytes: usize) -> Option<Block> {
        let fits = |b: &Block| b.bytes >= bytes && b.bytes / WASTE <= bytes.max(4096);
        let found = self.blocks.iter().rposition(fits)?;
        let block = self.blocks.remove(found);
        self.bytes -= block.bytes;
        Some(block)
    }

    /// Stores the block.  Returns the oldest blocks to free, so that at most `KEEP` bytes are stored.
    fn keep(&mut self, block: Block) -> Vec<Block> {
        if block.bytes > KEEP {
            return vec![block];
        }
        self.bytes += block.bytes;
        self.blocks.push(block);
        let mut dropped = Vec::new();
        while self.bytes > KEEP {
            let oldest = self.blocks.remove(0);
            self.bytes -= oldest.bytes;
            dropped.push(oldest);
        }
        dropped
    }
}

impl Scratch {
    pub fn take(bytes: usize) -> Outcome<Scratch> {
        // A busy pool is skipped.  After a fork, the parent may have held its lock.
        if let Some(block) = POOL.try_lock().ok().and_then(|mut pool| pool.take(bytes)) {
            return Ok(Scratch(Some(block)));
        }
        let bytes = whole_pages(bytes)?;
        // SAFETY: the size is not zero.
        let at = unsafe { alloc(layout(bytes)?) };
        if at.is_null() {
            return Err(Failure(format!("out of memory: cannot allocate a scratch of {bytes} bytes")));
        }
        Ok(Scratch(Some(Block { at, bytes })))
    }

    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |block| block.bytes)
    }

    pub fn address(&self) -> usize {
        self.0.as_ref().map_or(0, |block| block.at as usize)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some(block) = self.0.take() else { return };
        let dropped = match POOL.try_lock() {
            Ok(mut pool) => pool.keep(block),
            Err(_) => vec![block],
        };
        dropped.into_iter().for_each(release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pool_drops_its_oldest_blocks() {
        let mut pool = Pool { blocks: Vec::new(), bytes: 0 };
        let block = |bytes: usize| Block { at: std::ptr::null_mut(), bytes };
        for _ in 0..4 {
            assert!(pool.keep(block(KEEP / 4)).is_empty());
        }
        let dropped = pool.keep(block(KEEP / 2));
        assert_eq!((dropped.len(), pool.blocks.len(), pool.bytes), (2, 3, KEEP));
        assert_eq!(pool.keep(block(KEEP + 1)).len(), 1);
        assert!(pool.take(KEEP).is_none());
        assert!(pool.take(1).is_none()); // far too small a request for the block
        assert_eq!(pool.take(KEEP / 4).map(|b| b.bytes), Some(KEEP / 2)); // the most recently returned block that fits
    }

    #[test]
    fn whole_pages_up_to_the_end_of_the_range() {
        assert_eq!(whole_pages(0).ok(), Some(PAGE));
        assert_eq!(whole_pages(PAGE).ok(), Some(PAGE));
        assert_eq!(whole_pages(PAGE + 1).ok(), Some(2 * PAGE));
        assert!(whole_pages(usize::MAX - PAGE + 2).is_err());
        assert!(layout(isize::MAX as usize).is_err());
        assert!(Scratch::take(isize::MAX as usize - PAGE).is_err());
    }

    #[test]
    fn scratch_is_aligned_and_its_own() {
        let (a, b) = (Scratch::take(100), Scratch::take(5000));
        let addresses: Vec<usize> = [&a, &b].into_iter().flatten().map(Scratch::address).collect();
        assert!(addresses.len() == 2 && addresses.iter().all(|at| at % ALIGN == 0));
        assert!(addresses[0].abs_diff(addresses[1]) >= PAGE);
    }
}
