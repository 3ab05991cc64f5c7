//! Whether a profiler or watcher is active: one comparison of two words.
//!
//! torch's profiler stores whether it is on in a variable of a Python module.  The compared word is the version of that
//! module's dict: no profiler is active while the version is the last seen one.  If dicts have no changing version, the
//! compared word is a constant, and events of the dict call `stir`.

use super::dict_events;
use super::words::version_word;
use super::{Obj, Owned, Res};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

static STILL: u64 = 0;
static AT: AtomicPtr<u64> = AtomicPtr::new((&raw const STILL).cast_mut());
static SEEN: AtomicU64 = AtomicU64::new(0);

#[inline]
fn now() -> u64 {
    // SAFETY: a static, or a word of a dict that lives for ever (`look_at`); it is written with the GIL held, which
    // callers hold.
    unsafe { *AT.load(Relaxed) }
}

/// Whether the module may have changed since `rest`, or `stir` was called.
#[inline]
pub fn on() -> bool {
    now() != SEEN.load(Relaxed)
}

/// Records that nothing is active.  `on` is false until the next change.
pub fn rest() {
    SEEN.store(now(), Relaxed);
}

/// Makes `on` true until `rest`.
pub fn stir() {
    SEEN.store(!now(), Relaxed);
}

/// Compares the version of `variables` from now on, or calls `stir` at each of its events.  False if neither is
/// possible.
pub fn look_at(variables: Owned) -> Res<bool> {
    let probe = Owned::dict()?;
    let (key, word) = (Owned::interned("probe")?, version_word(probe.get()));
    // SAFETY: a word of the dict above, which lives.
    let read = || unsafe { std::ptr::read_volatile(word as *const u64) };
    probe.dict_set(key.get(), Owned::bool(false).get())?;
    let before = read();
    probe.dict_set(key.get(), Owned::bool(true).get())?;
    if read() == before {
        return Ok(dict_events::tell(Obj::forever(variables), stir));
    }
    AT.store(version_word(Obj::forever(variables)) as *mut u64, Relaxed);
    rest();
    Ok(true)
}
