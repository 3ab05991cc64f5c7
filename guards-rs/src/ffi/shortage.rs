//! The engine's allocator: the system's, and a reserve for when that has no memory.
//!
//! Rust ends the process where a `Vec`, a `Box` or a text gets no memory.  So the reserve serves such a request, and the
//! call that made it ends with a MemoryError (`noticed`) at its end, where nothing is left half done.  The reserve has
//! blocks for requests of up to `LARGE` bytes; no bookkeeping of a call needs more.  Larger ones (`aten::Scratch`) check
//! for null themselves.
//!
//! `fail` makes allocations of a thread fail, for tests: `tests/native/shortage.py` tries each of a call's.

use super::object::{no_memory, Res};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes of a small block, and the number of small blocks.
const SMALL: usize = 256;
const SMALLS: usize = 2048;
/// Bytes of a large block, and the number of large blocks.
const LARGE: usize = 64 << 10;
const LARGES: usize = 64;
const BYTES: usize = SMALL * SMALLS + LARGE * LARGES;

/// Whether a request has ever used the reserve.
static USED: AtomicBool = AtomicBool::new(false);
/// The number of threads whose allocations fail for a test.
static FAILING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// How often the system had no memory for this thread.
    static TIMES: Cell<u64> = const { Cell::new(0) };
    /// For tests: allocations until one fails, and whether all later ones fail, too.
    static PLAN: Cell<Option<(u64, bool)>> = const { Cell::new(None) };
}

/// Memory of the reserve.  The system provides a page of it when it is first used.
#[repr(align(4096))]
struct Memory(UnsafeCell<[u8; BYTES]>);

// SAFETY: a block belongs to who took it, by the bits below.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; BYTES]));
/// A bit for each block, set while it is taken.
static TAKEN: [AtomicU64; (SMALLS + LARGES) / 64] = [const { AtomicU64::new(0) }; (SMALLS + LARGES) / 64];

fn address(block: usize) -> usize {
    let at = if block < SMALLS { block * SMALL } else { SMALLS * SMALL + (block - SMALLS) * LARGE };
    MEMORY.0.get() as usize + at
}

/// The block at an address, and its size.  None for memory of the system.
#[inline]
fn block_at(at: *mut u8) -> Option<(usize, usize)> {
    let offset = (at as usize).wrapping_sub(MEMORY.0.get() as usize);
    (offset < BYTES).then(|| match offset.checked_sub(SMALLS * SMALL) {
        None => (offset / SMALL, SMALL),
        Some(offset) => (SMALLS + offset / LARGE, LARGE),
    })
}

/// A free block for the request; null if there is none.
#[cold]
fn take(layout: Layout) -> *mut u8 {
    USED.store(true, Ordering::Relaxed);
    TIMES.set(TIMES.get() + 1);
    let first = if layout.size() <= SMALL { 0 } else { SMALLS / 64 };
    if layout.size() > LARGE || layout.align() > SMALL {
        return std::ptr::null_mut();
    }
    for (word, taken) in TAKEN.iter().enumerate().skip(first) {
        let mut now = taken.load(Ordering::Relaxed);
        while now != u64::MAX {
            let bit = now.trailing_ones();
            now = taken.fetch_or(1 << bit, Ordering::Acquire);
            if now & 1 << bit == 0 {
                return address(word * 64 + bit as usize) as *mut u8;
            }
        }
    }
    std::ptr::null_mut()
}

#[cold]
fn give(block: usize) {
    TAKEN[block / 64].fetch_and(!(1 << (block % 64)), Ordering::Release);
}

/// Whether this allocation fails for a test.
#[cold]
fn fails() -> bool {
    let Some((left, all)) = PLAN.get() else { return false };
    PLAN.set(Some((left.saturating_sub(1), all)));
    left == 1 || left == 0 && all
}

#[inline]
fn is_failing() -> bool {
    FAILING.load(Ordering::Relaxed) != 0 && fails()
}

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

// Not inlined: calls allocate seldom, and each place of a drop would grow.
// SAFETY: the system's allocator, or blocks that nobody else has; null means that there is no memory.
unsafe impl GlobalAlloc for Allocator {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let at = if is_failing() { std::ptr::null_mut() } else { System.alloc(layout) };
        if at.is_null() {
            return take(layout);
        }
        at
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let at = if is_failing() { std::ptr::null_mut() } else { System.alloc_zeroed(layout) };
        if at.is_null() {
            let at = take(layout);
            if !at.is_null() {
                at.write_bytes(0, layout.size());
            }
            return at;
        }
        at
    }

    #[inline(never)]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let old = block_at(at);
        let larger =
            if old.is_some() || is_failing() { std::ptr::null_mut() } else { System.realloc(at, layout, size) };
        if !larger.is_null() {
            return larger;
        }
        if old.is_some_and(|(_, room)| size <= room) {
            return at;
        }
        // SAFETY: `size` is not zero, and is in range for this alignment (the caller's promise).
        let larger = take(Layout::from_size_align_unchecked(size, layout.align()));
        if !larger.is_null() {
            larger.copy_from_nonoverlapping(at, layout.size().min(size));
            self.dealloc(at, layout);
        }
        larger
    }

    #[inline(never)]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match block_at(at) {
            None => System.dealloc(at, layout),
            Some((block, _)) => give(block),
        }
    }
}

/// Not inlined: the address of a thread's variable costs a call, which the compiler would hoist into every call.
#[cold]
#[inline(never)]
fn own_times() -> u64 {
    TIMES.get()
}

#[inline]
fn times() -> u64 {
    if USED.load(Ordering::Relaxed) {
        own_times()
    } else {
        0
    }
}

/// The body's value, or a MemoryError if the system had no memory for something that the body allocated.
#[inline]
pub fn noticed<T>(body: impl FnOnce() -> Res<T>) -> Res<T> {
    let before = times();
    let result = body();
    if times() != before && result.is_ok() {
        return Err(no_memory());
    }
    result
}

/// The n-th allocation of this thread from now on (the next is the first) finds no memory of the system, alone or with all
/// later ones.
pub fn fail(n: u64, all: bool) {
    if PLAN.replace(Some((n, all))).is_none() {
        FAILING.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends `fail`.  Returns whether the allocation that was to fail came.
pub fn restore() -> bool {
    let plan = PLAN.take();
    if plan.is_some() {
        FAILING.fetch_sub(1, Ordering::Relaxed);
    }
    plan.is_some_and(|(left, _)| left == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken() -> u32 {
        TAKEN.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    #[test]
    #[cfg_attr(miri, ignore)] // needs an interpreter
    fn the_reserve_serves_what_the_system_cannot() {
        pyo3::Python::initialize();
        pyo3::Python::attach(|_| {
            let before = TIMES.get();
            let grown = noticed(|| {
                fail(1, true);
                let mut items: Vec<usize> = vec![7; 3];
                items.extend(0..1000); // moves from a small block to a large one
                let zeros = vec![0u8; 5000];
                let held = (items.capacity(), block_at(items.as_mut_ptr().cast()).map(|(_, room)| room));
                assert!(restore());
                items.extend(0..5000); // and on, to memory of the system or another block
                assert_eq!((items[0], items[3], items[1002]), (7, 0, 999));
                assert!(zeros.iter().all(|byte| *byte == 0));
                Ok(held)
            });
            assert!(grown.is_err());
            assert!(TIMES.get() > before);
            super::super::object::clear_error();
            assert_eq!(noticed(|| Ok(vec![1u8; 100])), Ok(vec![1u8; 100]));
        });
    }

    #[test]
    fn a_block_is_taken_once() {
        let small = Layout::new::<[u8; 200]>();
        let large = Layout::new::<[u8; 2000]>();
        let blocks = [take(small), take(small), take(large), take(large)];
        for (i, at) in blocks.iter().enumerate() {
            assert!(!at.is_null() && !blocks[..i].contains(at));
        }
        assert!(blocks.iter().all(|at| block_at(*at).is_some()) && taken() >= 4);
        assert!(take(Layout::new::<[u8; LARGE + 1]>()).is_null());
        for at in blocks {
            if let Some((block, _)) = block_at(at) {
                give(block);
            }
        }
        assert_eq!(block_at((&raw const small).cast_mut().cast()), None);
    }

    #[test]
    fn a_single_allocation_fails() {
        fail(2, false);
        let (first, second, third) = (Box::new([1u8; 64]), Box::new([2u8; 64]), Box::new([3u8; 64]));
        assert!(restore());
        let in_reserve = |item: &[u8; 64]| block_at(std::ptr::from_ref(item).cast_mut().cast()).is_some();
        assert_eq!([&first, &second, &third].map(|item| in_reserve(item)), [false, true, false]);
        fail(2, false);
        assert!(!restore());
    }
}
