//! Whether the frame hook is on in this thread: a depth of entries with a hook, and a depth of pauses.
//!
//! Apart from `hook.rs`, since guards and plans pause the hook and need nothing else of it.

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static PAUSED: Cell<usize> = const { Cell::new(0) };
}

/// Whether the hook handles this thread's frames now.
#[inline]
pub fn active() -> bool {
    DEPTH.with(|d| d.get() > 0) && PAUSED.with(|p| p.get() == 0)
}

/// An entry with a hook begins.
pub fn enter() {
    DEPTH.with(|d| d.set(d.get() + 1));
}

/// An entry with a hook ends.  False if none had begun in this thread.
pub fn leave() -> bool {
    DEPTH.with(|d| d.replace(d.get().saturating_sub(1)) > 0)
}

pub fn pause() {
    PAUSED.with(|p| p.set(p.get() + 1));
}

pub fn resume() {
    PAUSED.with(|p| p.set(p.get().saturating_sub(1)));
}

/// Runs Python code whose frames are not the program's: code of the engine, or of graphs.
#[inline]
pub fn paused<T>(f: impl FnOnce() -> T) -> T {
    if !active() {
        return f();
    }
    struct Resume;
    impl Drop for Resume {
        fn drop(&mut self) {
            resume();
        }
    }
    pause();
    let _resume = Resume; // after a panic too
    f()
}
