//! Work shared out to the threads of OpenMP's pool, which torch's operators and generated kernels use, too.
//!
//! In: a number of parts, and a function that does one part.  Out: `share_out`, which returns when all parts are done.
//! Thread t does the t-th of equal runs of neighbouring parts, as `omp for schedule(static)` does.  So steps that number
//! their parts along one dimension leave each thread the memory that it wrote in the step before.  Lines of another
//! core's cache take three times as long.  A thread that is done helps the others.  `with_memory` gives a thread memory that no
//! other thread has written.

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use smallvec::SmallVec;

use super::aten::{Outcome, Scratch};
use super::torch;

/// Bytes of memory that each thread keeps at most.
const KEPT: usize = 4 << 20;

type Parallel = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, u32, u32);
type Thread = unsafe extern "C" fn() -> i32;

/// Functions of an OpenMP library, in libgomp's ABI.
struct OpenMp {
    parallel: Parallel,
    thread: Thread,
}

fn openmp() -> Option<&'static OpenMp> {
    static FOUND: OnceLock<Option<OpenMp>> = OnceLock::new();
    let find = || {
        let (parallel, thread) = (torch::exported(c"GOMP_parallel")?, torch::exported(c"omp_get_thread_num")?);
        // SAFETY: `void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned)`, `int omp_get_thread_num(void)`.
        unsafe {
            Some(OpenMp {
                parallel: std::mem::transmute::<usize, Parallel>(parallel),
                thread: std::mem::transmute::<usize, Thread>(thread),
            })
        }
    };
    FOUND.get_or_init(find).as_ref()
}

/// Whether several threads can share work.
pub fn has_threads() -> bool {
    openmp().is_some()
}

/// A function for all threads, and the panic of one of them.
struct Team<'a> {
    body: &'a (dyn Fn(usize) + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Calls `body` with the number of the thread, in a team of up to `threads` threads.  A panic of one of them goes on in the
/// caller, after all have left: it cannot unwind through OpenMP.
fn in_team(threads: usize, body: &(dyn Fn(usize) + Sync)) {
    unsafe extern "C" fn enter(team: *mut c_void) {
        // SAFETY: the address of `team` below, which lives until all threads have left.
        let team = unsafe { &*team.cast::<Team>() };
        // SAFETY: a function without arguments.
        let thread = openmp().map_or(0, |omp| unsafe { (omp.thread)() });
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (team.body)(thread as usize))) {
            *team.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
    }
    match openmp() {
        Some(omp) if threads > 1 => {
            let team = Team { body, panic: Mutex::new(None) };
            // SAFETY: returns after all threads have left `enter`.
            unsafe { (omp.parallel)(enter, std::ptr::from_ref(&team).cast_mut().cast(), threads as u32, 0) };
            if let Some(panic) = team.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
                resume_unwind(panic);
            }
        }
        _ => body(0),
    }
}

/// The next part of a run, in a cache line of its own.
#[repr(align(64))]
struct Next(AtomicUsize);

/// `of(part)` for each part once.  A panic of a part goes on in the caller.
pub fn share_out(threads: usize, parts: usize, of: impl Fn(usize) + Sync) {
    let mut next: SmallVec<[Next; 4]> = SmallVec::new();
    let runs = threads.clamp(1, parts.max(1));
    let runs = if next.try_reserve_exact(runs).is_ok() { runs } else { next.inline_size() };
    let begin = |run: usize| run * parts / runs;
    next.extend((0..runs).map(|run| Next(AtomicUsize::new(begin(run)))));
    #[cfg(test)]
    let panics = PANICS.take();
    in_team(runs, &|thread| {
        for run in (0..runs).map(|run| (thread + run) % runs) {
            let (next, end) = (&next[run].0, begin(run + 1));
            while next.load(Ordering::Relaxed) < end {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part < end {
                    #[cfg(test)]
                    assert!(part > 0 || !panics, "meant");
                    of(part);
                }
            }
        }
    });
}

#[cfg(test)]
thread_local!(static PANICS: Cell<bool> = const { Cell::new(false) });

/// Runs `body`; the first part of its first shared work panics.
#[cfg(test)]
pub fn panicking<T>(body: impl FnOnce() -> T) -> T {
    PANICS.set(true);
    body()
}

/// Calls `of` with the address of so many floats, which are not initialised.
pub fn with_memory(floats: usize, of: impl FnOnce(*mut f32)) -> Outcome<()> {
    thread_local!(static KEEPS: Cell<Option<Scratch>> = const { Cell::new(None) });
    let bytes = floats.saturating_mul(size_of::<f32>());
    let kept = KEEPS.try_with(Cell::take).ok().flatten().filter(|kept| kept.bytes() >= bytes);
    let scratch = kept.map_or_else(|| Scratch::take(bytes), Ok)?;
    of(scratch.address() as *mut f32);
    if scratch.bytes() <= KEPT {
        let _ = KEEPS.try_with(|keeps| keeps.set(Some(scratch))); // a thread that ends keeps nothing
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_done_once() {
        for threads in [0, 1, 2, 3, 8] {
            for parts in [0, 1, 2, 7, 100] {
                let done: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                share_out(threads, parts, |part| {
                    done[part].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    done.iter().all(|times| times.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {parts} parts"
                );
            }
        }
    }

    #[test]
    fn a_panic_of_a_part_goes_on_in_the_caller() {
        for threads in [1, 2, 8] {
            let run = || share_out(threads, 8, |part| assert!(part != 5, "meant"));
            assert!(crate::ffi::caught::quietly(|| catch_unwind(run)).is_err(), "{threads} threads");
        }
    }

    #[test]
    fn a_thread_keeps_its_memory() {
        let address = |floats: usize| {
            let mut found = 0;
            assert!(with_memory(floats, |at| found = at as usize).is_ok());
            found
        };
        let first = address(5000);
        assert_eq!(address(100), first);
        assert_ne!(address(1 << 21), first); // too much to keep
        assert!(with_memory(usize::MAX, |_| ()).is_err());
    }
}
