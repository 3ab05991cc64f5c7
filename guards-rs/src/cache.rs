//! Entries per code object, most recently used first, and the counters of a callable.

use crate::entry::{Contents, EntryRef};
use crate::ffi::{Obj, Owned, Res};
use crate::guard::Walk;
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

/// (position among the code object's entries, index of a guard that fails)
pub type Reasons = SmallVec<[(usize, u32); 4]>;

pub struct CodeCache {
    pub code: Owned,
    pub signature: Signature,
    entries: RefCell<SmallVec<[EntryRef; 2]>>,
    /// The compiler said: never.
    pub skip: Cell<bool>,
    /// The limit was reported.
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

    /// Without those that ended (`Entry.end`), here and in positions.
    pub fn len(&self) -> usize {
        self.entries.borrow().iter().filter(|e| e.is_live()).count()
    }

    pub fn snapshot(&self) -> Vec<EntryRef> {
        self.entries.borrow().iter().filter(|e| e.is_live()).cloned().collect()
    }

    /// For the cycle collector; skips while the list is being changed.
    pub fn visit(&self, f: &mut dyn FnMut(Obj)) {
        f(self.code.get());
        f(self.signature.freevars.get());
        self.signature.names.iter().for_each(|n| f(n.get()));
        if let Ok(entries) = self.entries.try_borrow() {
            entries.iter().for_each(|e| f(e.obj()));
        }
    }

    /// Empties the list; the entries are dropped by the caller, outside of any borrow.
    #[must_use]
    pub fn take(&self) -> SmallVec<[EntryRef; 2]> {
        std::mem::take(&mut *self.entries.borrow_mut())
    }

    /// Returns the entries that ended, for the caller to drop outside of any borrow.
    #[must_use]
    pub fn push_front(&self, entry: EntryRef) -> SmallVec<[EntryRef; 2]> {
        let mut entries = self.entries.borrow_mut();
        let (mut live, ended): (SmallVec<[EntryRef; 2]>, _) = entries.drain(..).partition(|e| e.is_live());
        live.insert(0, entry);
        *entries = live;
        ended
    }

    fn get(&self, i: usize) -> Option<EntryRef> {
        self.entries.borrow().get(i).cloned()
    }

    fn move_to_front(&self, entry: &EntryRef) {
        let mut entries = self.entries.borrow_mut();
        // Guards may have run code that changed the list: find the entry again.
        if let Some(i) = entries.iter().position(|e| e.obj() == entry.obj()) {
            entries[..=i].rotate_right(1);
        }
    }

    /// The first entry whose guards hold, with the values it recorded in `walk`.
    #[inline]
    pub fn find(
        &self,
        locals: &[Option<Obj>],
        globals: Obj,
        walk: &mut Walk,
        counters: &Counters,
        reasons: &mut Reasons,
    ) -> Option<Rc<Contents>> {
        self.find_by(walk, counters, reasons, |_, contents, walk| contents.check(locals, globals, walk))
    }

    /// `find`, with a check that is given the position of each entry.
    #[inline]
    pub fn find_by(
        &self,
        walk: &mut Walk,
        counters: &Counters,
        reasons: &mut Reasons,
        mut check: impl FnMut(usize, &Contents, &mut Walk) -> Result<(), u32>,
    ) -> Option<Rc<Contents>> {
        let mut position = 0;
        for i in 0.. {
            let Some(entry) = self.get(i) else { break };
            let Some(contents) = entry.contents() else { continue };
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
