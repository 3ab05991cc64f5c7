//! Entries of each code object, most recently used first, and the counters of a callable.

use crate::entry::{Contents, EntryRef};
use crate::ffi::{Obj, Owned, Res, Stored};
use crate::guard::GuardWalk;
use crate::signature::Signature;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

macro_rules! counters {
    ($($name:ident),*) => {
        #[derive(Default)]
        pub struct Counters { $(pub $name: Counter),* }

        impl Counters {
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.0.get())),*]
            }
            pub fn reset(&self) {
                $(self.$name.0.set(0);)*
            }
        }
    };
}

counters!(hits, misses, compiles, eager_calls, limit_hits, guard_checks, fresh_failures, tail_calls);

#[derive(Default)]
pub struct Counter(Cell<u64>);

impl Counter {
    #[inline]
    pub fn add(&self) {
        self.0.set(self.0.get() + 1);
    }
}

type ShortList<T> = SmallVec<[T; 2]>;

/// Removes the items that are not live and puts `new` first.  Returns the removed items.
fn put_first<T>(items: &mut ShortList<T>, new: T, is_live: impl Fn(&T) -> bool) -> ShortList<T> {
    let (mut live, ended): (ShortList<T>, _) = items.drain(..).partition(is_live);
    live.insert(0, new);
    *items = live;
    ended
}

/// Moves the item to the front.  The other items keep their order.
fn bring_first<T>(items: &mut [T], is_it: impl Fn(&T) -> bool) {
    if let Some(i) = items.iter().position(is_it) {
        items[..=i].rotate_right(1);
    }
}

/// Pairs (position among the code object's entries, index of a guard that fails).
pub type Reasons = SmallVec<[(usize, u32); 4]>;

/// The entries of one code object.
pub struct CodeCache {
    pub code: Owned,
    pub signature: Signature,
    entries: RefCell<SmallVec<[EntryRef; 2]>>,
    /// Whether the compiler answered never to compile this code object.
    pub skip: Cell<bool>,
    /// Whether the limit was reported.
    pub limit_reported: Cell<bool>,
}

impl CodeCache {
    pub fn new(code: Obj) -> Res<Rc<CodeCache>> {
        Ok(Rc::new(CodeCache {
            code: code.own(),
            signature: Signature::of(code)?,
            entries: RefCell::default(),
            skip: Cell::new(false),
            limit_reported: Cell::new(false),
        }))
    }

    /// Number of entries.  Ended entries (`Entry.end`) do not count, here and in positions.
    pub fn len(&self) -> usize {
        let py = self.code.get().py();
        self.entries.borrow().iter().filter(|e| e.is_live(py)).count()
    }

    pub fn snapshot(&self) -> Vec<EntryRef> {
        let py = self.code.get().py();
        self.entries.borrow().iter().filter(|e| e.is_live(py)).cloned().collect()
    }

    /// For the garbage collector.  Skips the entries while the list is being changed.
    pub fn visit(&self, f: &mut dyn FnMut(Obj)) {
        f(self.code.get());
        f(self.signature.freevars.get());
        self.signature.names.iter().for_each(|n| f(n.get()));
        if let Ok(entries) = self.entries.try_borrow() {
            entries.iter().for_each(|e| f(e.obj()));
        }
    }

    /// Empties the list.  The caller drops the entries outside of any borrow.
    #[must_use]
    pub fn take(&self) -> SmallVec<[EntryRef; 2]> {
        std::mem::take(&mut *self.entries.borrow_mut())
    }

    /// Returns the ended entries, which the caller drops outside of any borrow.
    #[must_use]
    pub fn push_front(&self, entry: EntryRef) -> SmallVec<[EntryRef; 2]> {
        let py = self.code.get().py();
        put_first(&mut self.entries.borrow_mut(), entry, |e| e.is_live(py))
    }

    fn get(&self, i: usize) -> Option<EntryRef> {
        self.entries.borrow().get(i).cloned()
    }

    fn move_to_front(&self, entry: &EntryRef) {
        // Guards may have run code that changed the list, so the entry is searched again.
        bring_first(&mut self.entries.borrow_mut(), |e| e.obj() == entry.obj());
    }

    /// The first entry whose guards hold.  Its recorded values are in `walk`.
    #[inline]
    pub fn find(
        &self,
        locals: &[Option<Stored>],
        globals: Obj,
        walk: &mut GuardWalk,
        counters: &Counters,
        reasons: &mut Reasons,
    ) -> Option<Rc<Contents>> {
        self.find_by(walk, counters, reasons, |_, contents, walk| contents.check(locals, globals, walk))
    }

    /// `find` with another check, which receives the position of each entry.
    #[inline]
    pub fn find_by(
        &self,
        walk: &mut GuardWalk,
        counters: &Counters,
        reasons: &mut Reasons,
        mut check: impl FnMut(usize, &Contents, &mut GuardWalk) -> Result<(), u32>,
    ) -> Option<Rc<Contents>> {
        let mut position = 0;
        for i in 0.. {
            let Some(entry) = self.get(i) else { break };
            let Some(contents) = entry.contents(self.code.get().py()) else { continue };
            counters.guard_checks.add();
            match check(position, &contents, walk) {
                Ok(()) => {
                    if i > 0 {
                        self.move_to_front(&entry);
                    }
                    contents.hit();
                    return Some(contents);
                }
                Err(guard) => {
                    reasons.push((position, guard));
                    walk.reset();
                }
            }
            position += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_that_was_hit_is_tried_first() {
        let mut items = ["a", "b", "c", "d"];
        bring_first(&mut items, |item| *item == "c");
        assert_eq!(items, ["c", "a", "b", "d"]);
        bring_first(&mut items, |item| *item == "c");
        assert_eq!(items, ["c", "a", "b", "d"]);
        bring_first(&mut items, |item| *item == "d");
        assert_eq!(items, ["d", "c", "a", "b"]);
    }

    #[test]
    fn an_entry_that_is_gone_changes_no_order() {
        let mut items = [1, 2, 3];
        bring_first(&mut items, |item| *item == 4);
        assert_eq!(items, [1, 2, 3]);
        bring_first(&mut [] as &mut [i32], |_| true);
    }

    #[test]
    fn a_new_entry_is_first_and_ended_ones_leave() {
        let mut items: ShortList<i32> = SmallVec::from_slice(&[5, -1, 6, -2]);
        let ended = put_first(&mut items, 7, |item| *item > 0);
        assert_eq!(items.as_slice(), [7, 5, 6]);
        assert_eq!(ended.as_slice(), [-1, -2]);
    }

    #[test]
    fn counters_are_named_and_reset() {
        let counters = Counters::default();
        counters.hits.add();
        counters.hits.add();
        counters.misses.add();
        let rows = counters.rows();
        assert_eq!((rows[0], rows[1]), (("hits", 2), ("misses", 1)));
        counters.reset();
        assert!(counters.rows().iter().all(|(_, n)| *n == 0));
    }
}
