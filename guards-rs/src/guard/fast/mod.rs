//! The fast path: the guards of a subtree need no evaluation while nothing changed on the path to them.
//!
//! In: a tree whose check just succeeded, and the values that the check read.  Out: `Fast`, a recording of three parts:
//! - dicts that call back when they change;
//! - a flat list of words of memory in depth-first order: type pointers and versions, slots, dict versions, tensor
//!   metadata;
//! - the few checks that neither can decide.
//!
//! A dict reports a change in one of two ways.  `ffi/dict_probe.rs` finds out which one this interpreter supports:
//! - by an *event*, before each change and before the dict dies.  Until an event arrives, all dicts that a recording
//!   watches are alive and unchanged.  One comparison, made first, covers all of them (`ffi/dict_events.rs`);
//! - by a *version*, a word in the dict.  Every change stores a new version, which no other dict has.
//!
//! Why it is sound.  A value is *pinned* when events and words prove that the path leads to the same object as before:
//! - an item of an unchanged dict: the dict held the item all the time.  A dict without events has its version
//!   compared, and no other dict has that version;
//! - an item of a pinned tuple, a part of a pinned method, an immutable part of a pinned function;
//! - a class attribute, while the type has the same version.  A class that the tree keeps is held strongly.  Any other
//!   class may die: it is pinned first, and its version is a word that no other class ever had;
//! - the referent of a pinned weak reference, while the slot of the reference has that address.  CPython empties the
//!   slot before the object dies;
//! - the object in any other slot (an instance dict is treated as a dict).  The slot has the same address, and no
//!   other object can have it: a weak reference to the object is alive, or the recording holds the object strongly
//!   (constants, code objects, weak references without a callback).
//!
//! An object reports neither a new class nor a new instance dict: these two slots are words.  A weak reference tells a
//! class that may die from a later class at the same address.  Events of types and functions would gain nothing: a
//! program has few of them, with one word each.
//!
//! An event arrives before the change, in the thread that makes the change.  The GIL is held until the change is
//! done.  A check reads everything without releasing the GIL.  So a check lies wholly before the event or wholly after
//! the change.  (Another watcher of the same dict could only get in between by running Python in its callback; none
//! does.)  An event cannot be taken back: the recording is finished, and the next recording watches the dict again.
//!
//! Words are read in order: earlier words prove that later words lie in live objects.  A word that was already read is
//! left out.  A value that can change without changing a word is evaluated each time.  A word that changes often (a
//! counter in a module) is given up: see `volatile`.
//!
//! Tensors come last, when all of them are proved alive.  No version changes with `t.data = ...`, `resize_` or
//! `requires_grad_`, so the fast path reads the memory that the guard compares (`ffi/tensor_words.rs`).  The order is:
//! class, address of the TensorImpl (this proves the rest; `swap_tensors` changes it), address of autograd's metadata,
//! the flag in that metadata, dtype, sizes, strides.
//!
//! A relation over pinned values alone still holds.  In any other relation, the other values are compared with the
//! pinned ones (`RereadRelation`).

mod pins;
mod record;

pub use pins::{Owner, PinnedAnswer, Pins};

use super::tree::{Program, Relate, Tree};
use super::GuardWalk;
use crate::ffi::dict_events::FirstEvent;
use crate::ffi::tensor_words::RecordedTensors;
use crate::ffi::words::{self, TypeVersion, Word};
use crate::ffi::{NoCollector, Obj, Owned, Stored};
use record::Recorder;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;

/// An entry is recorded again after its words changed, at most this many times.
const MAX_RECORDINGS: u32 = 24;
/// Largest number of keys at which a dict lookup is worth its cost.
const LOOKUP_SCAN: usize = 16;
/// After this many hits, a change does not make its owner volatile, and the new recording does not count.
const SELDOM: u32 = 8;

/// Steps to evaluate, with `value` at position `at` of the stack.
struct Residual {
    start: u32,
    end: u32,
    at: u16,
    value: Option<Stored>,
}

/// An item of a dict that changes often: looked up in each check.
struct Lookup {
    /// Number of words that come before this lookup.
    after: usize,
    dict: Stored,
    key: Stored,
    value: Stored,
    owner: Owner,
}

/// A relation with values that each check reads again.  `late` has their records; for a relation that rereads, all
/// records in order.
struct RereadRelation {
    /// Position among the tree's relations.
    relation: usize,
    /// Addresses of the pinned values, ascending.
    pinned: Vec<usize>,
    late: Vec<u16>,
}

/// A recording: the parts that the module docs describe.  Nobody here owns a `Stored` (rule *stored*): it is an address to
/// compare with, and read only after the words have proved that its object lives.
#[derive(Default)]
pub struct Fast {
    roots: Vec<(usize, Stored, Owner)>,
    globals: Option<(Stored, Owner)>,
    versions: Vec<TypeVersion>,
    /// Events of dicts, where the interpreter supports them.
    news: FirstEvent,
    words: Vec<Word>,
    owners: Vec<Owner>,
    /// Checked after all words.
    tensors: Option<RecordedTensors>,
    lookups: Vec<Lookup>,
    /// None for a record that a residual fills.
    records: Vec<Option<Stored>>,
    late_records: HashSet<u16>,
    /// Index of the last late record, plus one.
    n_late: usize,
    /// The values of the tree's inputs.
    inputs: Vec<Stored>,
    /// Inputs that each check reads again: position and record.
    late_inputs: Vec<(usize, u16)>,
    relations: Vec<RereadRelation>,
    first: Vec<Residual>,
    residuals: Vec<Residual>,
    pub held: Vec<Owned>,
    hits: Cell<u32>,
}

/// The result of a check by a recording.
pub enum Verdict {
    Holds,
    Fails(u32),
    /// Something that a word watches has changed.
    Changed(Owner),
}

impl Fast {
    /// Records the parts of the tree's check that the next check may skip.  None when a path cannot be read.
    pub fn record(tree: &Tree, locals: &[Option<Stored>], globals: Obj, volatile: &HashSet<Owner>) -> Option<Fast> {
        let Tree { program, n_records, relations, inputs, keep, .. } = tree;
        let _quiet = NoCollector::new(); // creates weak references
        let fast = Fast { records: vec![None; *n_records], ..Fast::default() };
        let mut recorder = Recorder::new(program, fast, volatile, keep.iter().map(|o| o.get().id()).collect());
        recorder.run(locals, globals)?;
        let mut fast = recorder.fast;
        for record in &fast.late_records {
            fast.records[*record as usize] = None;
            fast.n_late = fast.n_late.max(*record as usize + 1);
        }
        fast.inputs = inputs.iter().map(|record| fast.pinned_record(*record).unwrap_or(Obj::none()).store()).collect();
        let late = inputs.iter().copied().enumerate().filter(|(_, record)| fast.pinned_record(*record).is_none());
        fast.late_inputs = late.collect();
        fast.relations = relations.iter().enumerate().filter_map(|(i, r)| fast.beside(i, r)).collect();
        Some(fast)
    }

    /// None for a relation over pinned values alone: it still holds, unless it rereads.
    fn beside(&self, relation: usize, relate: &Relate) -> Option<RereadRelation> {
        if relate.relation.rereads() {
            return Some(RereadRelation { relation, pinned: vec![], late: relate.records.clone() });
        }
        let late: Vec<u16> = relate.records.iter().copied().filter(|r| self.late_records.contains(r)).collect();
        let mut pinned: Vec<usize> =
            relate.records.iter().filter_map(|r| self.pinned_record(*r)).map(Obj::id).collect();
        pinned.sort_unstable();
        (!late.is_empty()).then_some(RereadRelation { relation, pinned, late })
    }

    /// Whether the recording saves more than it costs.
    pub fn is_worth_it(&self) -> bool {
        self.news.len() + self.words.len() + self.tensors.as_ref().map_or(0, RecordedTensors::len) >= 3
    }

    /// The number of steps that each check evaluates.
    pub fn evaluated(&self) -> usize {
        self.first.iter().chain(&self.residuals).map(|residual| (residual.end - residual.start) as usize).sum()
    }

    #[inline]
    pub fn pinned_record(&self, record: u16) -> Option<Obj<'_>> {
        self.records[record as usize].as_ref().map(Stored::get)
    }

    /// The values of the tree's inputs.  Positions in `late_inputs` have a placeholder.
    #[inline]
    pub fn inputs(&self) -> &[Obj<'_>] {
        Stored::all(&self.inputs)
    }

    #[inline]
    pub fn late_inputs(&self) -> &[(usize, u16)] {
        &self.late_inputs
    }

    /// Checks the relations with values that `walk` has just read.
    pub fn relate(&self, relations: &[Relate], walk: &GuardWalk) -> Result<(), u32> {
        for beside in &self.relations {
            let relate = &relations[beside.relation];
            if relate.relation.rereads() {
                let all: SmallVec<[Obj; 16]> = beside.late.iter().filter_map(|r| walk.record(*r)).collect();
                if all.len() < beside.late.len() || !relate.relation.holds(&all) {
                    return Err(relate.index);
                }
                continue;
            }
            let late: SmallVec<[Obj; 16]> =
                beside.late.iter().filter_map(|r| walk.records[*r as usize].as_ref()).map(Stored::get).collect();
            if late.len() < beside.late.len() || !relate.relation.holds_beside(&beside.pinned, &late) {
                return Err(relate.index);
            }
        }
        Ok(())
    }

    /// The owner of the first watched thing that changed.
    #[inline]
    fn changed(&self, locals: &[Option<Stored>], globals: Obj) -> Option<Owner> {
        if let Some(owner) = self.news.heard() {
            return Some(owner);
        }
        for (slot, value, owner) in &self.roots {
            if locals.get(*slot).copied().flatten() != Some(*value) {
                return Some(*owner);
            }
        }
        if let Some((value, owner)) = self.globals {
            if value != globals.store() {
                return Some(owner);
            }
        }
        if !self.versions.iter().all(|v| v.unchanged()) {
            return Some(u32::MAX);
        }
        let mut done = 0;
        for lookup in &self.lookups {
            if let Some(i) = words::first_changed(&self.words[done..lookup.after]) {
                return Some(self.owners[done + i]);
            }
            done = lookup.after;
            if lookup.dict.get().dict_find(lookup.key.get(), LOOKUP_SCAN) != Ok(Some(lookup.value.get())) {
                return Some(lookup.owner);
            }
        }
        if let Some(i) = words::first_changed(&self.words[done..]) {
            return Some(self.owners[done + i]);
        }
        self.tensors.as_ref()?.first_changed()
    }

    pub fn unchanged(&self, locals: &[Option<Stored>], globals: Obj) -> bool {
        self.changed(locals, globals).is_none()
    }

    /// The check: first the checks that need no value, then events and words, then the remaining steps.
    #[inline]
    pub fn check(
        self: &Rc<Self>,
        program: &Program,
        locals: &[Option<Stored>],
        globals: Obj,
        walk: &mut GuardWalk,
    ) -> Verdict {
        let run = |residual: &Residual, walk: &mut GuardWalk| {
            if residual.value.is_some() {
                walk.stack[residual.at as usize] = residual.value;
            }
            program.run(residual.start as usize, residual.end as usize, locals, globals, walk)
        };
        for residual in &self.first {
            if let Err(index) = run(residual, walk) {
                return Verdict::Fails(index);
            }
        }
        if let Some(owner) = self.changed(locals, globals) {
            return Verdict::Changed(owner);
        }
        walk.records.clear();
        walk.records.resize(self.n_late, None);
        walk.pinned = Some(self.clone());
        for residual in &self.residuals {
            if let Err(index) = run(residual, walk) {
                return Verdict::Fails(index);
            }
        }
        self.hits.set(self.hits.get().saturating_add(1));
        Verdict::Holds
    }

    /// Values that words prove alive at this moment.  Residuals, or code after the check, will use them.
    pub fn borrowed(&self) -> impl Iterator<Item = Obj<'_>> {
        self.residuals.iter().filter_map(|r| r.value.as_ref()).chain(self.records.iter().flatten()).map(Stored::get)
    }
}

/// The current recording of a tree, and the history of its recordings.
#[derive(Default)]
pub struct State {
    pub current: Option<Rc<Fast>>,
    pub volatile: HashSet<Owner>,
    recordings: u32,
    /// Whether the tree has nothing that words can watch.
    useless: bool,
}

impl State {
    /// `useful`: whether words can watch anything in the tree.
    pub fn new(useful: bool) -> State {
        State { useless: !useful, ..State::default() }
    }

    /// Whether to record at the next successful check.
    pub fn wants_recording(&self) -> bool {
        self.current.is_none() && !self.useless && self.recordings < MAX_RECORDINGS
    }

    /// Returns a replaced recording, stored by another check meanwhile.  The caller drops it.
    #[must_use]
    pub fn store(&mut self, fast: Rc<Fast>) -> Option<Rc<Fast>> {
        self.recordings += 1;
        if fast.is_worth_it() {
            return self.current.replace(fast);
        }
        self.useless = true;
        None
    }

    /// Call when the guards hold although something watched by `changed` changed.  An owner that changes often becomes
    /// volatile.
    #[must_use]
    pub fn give_up(&mut self, changed: &Rc<Fast>, owner: Owner) -> Option<Rc<Fast>> {
        // Python code in the check may have called this function already, and may have made a new recording.
        let old = self.current.take_if(|now| Rc::ptr_eq(now, changed))?;
        if old.hits.get() >= SELDOM {
            self.recordings = self.recordings.saturating_sub(1);
        } else {
            self.volatile.insert(owner);
        }
        Some(old)
    }
}
