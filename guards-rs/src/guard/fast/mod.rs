//! The fast path: when nothing that a whole subtree was read through has changed, its guards need no evaluation.
//!
//! In: a tree whose check just succeeded, and the values it saw.  Out: `Fast`: dicts that call back when they change, a flat
//! list of words of memory (type pointers and versions, slots, dict versions, tensor metadata) in depth-first order, and the
//! few checks that neither can answer.
//!
//! A dict tells that it changed in one of two ways (`ffi/dict_probe.rs` says which is to be relied on in this interpreter):
//! - by an *event*, before each change and before its death.  Until one was heard, all the dicts that a recording watches
//!   live and hold what they held: one comparison for all of them, made first (`ffi/dict_events.rs`);
//! - by a *version*, a word of its own that every change makes a new one, unlike that of any other dict.
//!
//! Why it is sound.  A value is *pinned* when they prove that the path leads to the very object seen before:
//! - an item of a dict that did not change: the dict held it all the time.  Where the dict has no event, its version is
//!   compared, and no other dict has that version;
//! - an item of a pinned tuple, a part of a pinned method, the immutable parts of a pinned function;
//! - a class attribute, while the type has the same version.  One that the tree keeps is held strongly; another one (of Python's,
//!   which may end) is pinned before, and its version is a word, which no other class has had;
//! - what a pinned weak reference refers to, while its slot has that address (the end of an object empties it first);
//! - anything else that a slot holds (an instance dict aside, which follows as a dict): the slot is the same and a weak
//!   reference to the object is alive, or a strong one is held (constants, code, weak references that call nothing), so no other object can have its address.
//!
//! Nothing says that an object got another class or another instance dict: its two slots are words.  A class that may end is told
//! from a later one at its address by a weak reference.  Nor is there anything
//! to gain from events of types and functions: a program has few of them, and one word each.
//!
//! An event is heard before the change, by the thread that makes it, which holds the GIL from there to the end of the change;
//! a check reads everything without letting go of the GIL.  So a check comes wholly before the event or wholly after the
//! change.  (Another watcher of the same dict would have to run Python in its own callback to get in between; none does.)
//! What was heard stays heard: the recording is done with, and the next one asks anew.
//!
//! Words are read in an order in which the earlier ones prove that the later ones lie in live objects; a word that was
//! read already proves the same again, and is left out.  What can change without a word is evaluated each time; a word that
//! changes often (a counter in a module) is given up: `volatile`.
//!
//! Tensors come last, by then all are proved alive.  No version says that `t.data = ...`, `resize_` or `requires_grad_` ran,
//! so the memory that the guard compares is read (`ffi/tensor_words.rs`): class, then the address of the TensorImpl (it
//! proves what follows; `swap_tensors` changes it), that of the metadata of autograd, the flag in them, dtype, sizes, strides.
//! A relation over pinned values alone still holds; over others too, these are compared with the pinned ones (`Beside`).

mod pins;
mod record;

pub use pins::{Owner, Pins, Settled};

use super::tree::{Program, Relate, Tree};
use super::Walk;
use crate::ffi::dict_events::News;
use crate::ffi::tensor_words::Known;
use crate::ffi::words::{self, TypeVersion, Word};
use crate::ffi::{NoCollector, Obj, Owned};
use record::Recorder;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;

/// A checked entry is recorded again after its words changed, up to this many times.
const MAX_RECORDINGS: u32 = 24;
/// Most keys of a dict that a lookup is worth.
const LOOKUP_SCAN: usize = 16;
/// A change after this many hits is not held against what changed, and its new recording does not count.
const SELDOM: u32 = 8;

/// Steps to evaluate with `value` at position `at` of the stack.
struct Residual {
    start: u32,
    end: u32,
    at: u16,
    value: Option<Obj>,
}

/// An item of a dict that changes often: looked up each time.
struct Lookup {
    /// How many words come before it.
    after: usize,
    dict: Obj,
    key: Obj,
    value: Obj,
    owner: Owner,
}

/// A relation of which some values are read anew each time (of one that rereads: all, in order).
struct Beside {
    /// Its position among the tree's relations.
    relation: usize,
    /// Addresses of the pinned values, ascending.
    pinned: Vec<usize>,
    late: Vec<u16>,
}

#[derive(Default)]
pub struct Fast {
    roots: Vec<(usize, Obj, Owner)>,
    globals: Option<(Obj, Owner)>,
    versions: Vec<TypeVersion>,
    /// Of dicts, where these call back.
    news: News,
    words: Vec<Word>,
    owners: Vec<Owner>,
    /// Checked after all words.
    tensors: Option<Known>,
    lookups: Vec<Lookup>,
    /// None for those that a residual fills.
    records: Vec<Option<Obj>>,
    late_records: HashSet<u16>,
    /// One more than the last of the late records.
    n_late: usize,
    /// The values of the tree's inputs.
    inputs: Vec<Obj>,
    /// Those of them that are read each time, and their records.
    late_inputs: Vec<(usize, u16)>,
    relations: Vec<Beside>,
    first: Vec<Residual>,
    residuals: Vec<Residual>,
    pub held: Vec<Owned>,
    hits: Cell<u32>,
}

pub enum Verdict {
    Holds,
    Fails(u32),
    /// Something changed that words watch.
    Changed(Owner),
}

impl Fast {
    /// What the tree's check may rely on next time, or None when a path cannot be read.
    pub fn record(tree: &Tree, locals: &[Option<Obj>], globals: Obj, volatile: &HashSet<Owner>) -> Option<Fast> {
        let Tree { program, n_records, relations, inputs, keep, .. } = tree;
        let _quiet = NoCollector::new(); // weak references are made
        let fast = Fast { records: vec![None; *n_records], ..Fast::default() };
        let mut recorder = Recorder::new(program, fast, volatile, keep.iter().map(|o| o.id()).collect());
        recorder.run(locals, globals)?;
        let mut fast = recorder.fast;
        for record in &fast.late_records {
            fast.records[*record as usize] = None;
            fast.n_late = fast.n_late.max(*record as usize + 1);
        }
        fast.inputs = inputs.iter().map(|record| fast.pinned_record(*record).unwrap_or(Obj::none())).collect();
        let late = inputs.iter().copied().enumerate().filter(|(_, record)| fast.pinned_record(*record).is_none());
        fast.late_inputs = late.collect();
        fast.relations = relations.iter().enumerate().filter_map(|(i, r)| fast.beside(i, r)).collect();
        Some(fast)
    }

    /// None for a relation over pinned values alone: it still holds, unless it looks into them.
    fn beside(&self, relation: usize, relate: &Relate) -> Option<Beside> {
        if relate.relation.rereads() {
            return Some(Beside { relation, pinned: vec![], late: relate.records.clone() });
        }
        let late: Vec<u16> = relate.records.iter().copied().filter(|r| self.late_records.contains(r)).collect();
        let mut pinned: Vec<usize> =
            relate.records.iter().filter_map(|r| self.pinned_record(*r)).map(Obj::id).collect();
        pinned.sort_unstable();
        (!late.is_empty()).then_some(Beside { relation, pinned, late })
    }

    /// Whether it spares more than it costs.
    pub fn is_worth_it(&self) -> bool {
        self.news.len() + self.words.len() + self.tensors.as_ref().map_or(0, Known::len) >= 3
    }

    #[inline]
    pub fn pinned_record(&self, record: u16) -> Option<Obj> {
        self.records[record as usize]
    }

    /// The values of the tree's inputs; something else for those that are read each time.
    #[inline]
    pub fn inputs(&self) -> &[Obj] {
        &self.inputs
    }

    #[inline]
    pub fn late_inputs(&self) -> &[(usize, u16)] {
        &self.late_inputs
    }

    /// The relations with values read by the check that `walk` made just now.
    pub fn relate(&self, relations: &[Relate], walk: &Walk) -> Result<(), u32> {
        for beside in &self.relations {
            let relate = &relations[beside.relation];
            if relate.relation.rereads() {
                let all: SmallVec<[Obj; 16]> = beside.late.iter().filter_map(|r| walk.record(*r)).collect();
                if all.len() < beside.late.len() || !relate.relation.holds(&all) {
                    return Err(relate.index);
                }
                continue;
            }
            let late: SmallVec<[Obj; 16]> = beside.late.iter().filter_map(|r| walk.records[*r as usize]).collect();
            if late.len() < beside.late.len() || !relate.relation.holds_beside(&beside.pinned, &late) {
                return Err(relate.index);
            }
        }
        Ok(())
    }

    /// The first watched thing that changed.
    #[inline]
    fn changed(&self, locals: &[Option<Obj>], globals: Obj) -> Option<Owner> {
        if let Some(owner) = self.news.heard() {
            return Some(owner);
        }
        for (slot, value, owner) in &self.roots {
            if locals.get(*slot).copied().flatten() != Some(*value) {
                return Some(*owner);
            }
        }
        if let Some((value, owner)) = self.globals {
            if value != globals {
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
            if lookup.dict.dict_find(lookup.key, LOOKUP_SCAN) != Ok(Some(lookup.value)) {
                return Some(lookup.owner);
            }
        }
        if let Some(i) = words::first_changed(&self.words[done..]) {
            return Some(self.owners[done + i]);
        }
        self.tensors.as_ref()?.first_changed()
    }

    pub fn unchanged(&self, locals: &[Option<Obj>], globals: Obj) -> bool {
        self.changed(locals, globals).is_none()
    }

    /// The check: words first, then what they cannot answer.
    #[inline]
    pub fn check(self: &Rc<Self>, program: &Program, locals: &[Option<Obj>], globals: Obj, walk: &mut Walk) -> Verdict {
        let run = |residual: &Residual, walk: &mut Walk| {
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

    /// Values that words prove alive at this moment, and that residuals or what runs after the check will use.
    pub fn borrowed(&self) -> impl Iterator<Item = Obj> + '_ {
        self.residuals.iter().filter_map(|r| r.value).chain(self.records.iter().copied().flatten())
    }
}

/// The recording of a tree, and how it went so far.
#[derive(Default)]
pub struct State {
    pub current: Option<Rc<Fast>>,
    pub volatile: HashSet<Owner>,
    recordings: u32,
    /// The tree has nothing that words can watch.
    useless: bool,
}

impl State {
    /// For a tree of which `useful` says whether words can watch anything.
    pub fn new(useful: bool) -> State {
        State { useless: !useful, ..State::default() }
    }

    /// Whether to record at the next successful check.
    pub fn wants_recording(&self) -> bool {
        self.current.is_none() && !self.useless && self.recordings < MAX_RECORDINGS
    }

    /// The one that it replaces, which a check made meanwhile, is dropped by the caller.
    #[must_use]
    pub fn store(&mut self, fast: Rc<Fast>) -> Option<Rc<Fast>> {
        self.recordings += 1;
        if fast.is_worth_it() {
            return self.current.replace(fast);
        }
        self.useless = true;
        None
    }

    /// The guards hold although a thing watched by `changed` did.  What changes often is watched no more.
    #[must_use]
    pub fn give_up(&mut self, changed: &Rc<Fast>, owner: Owner) -> Option<Rc<Fast>> {
        // Python code that the check ran may have come here before, and may have recorded anew.
        let old = self.current.take_if(|now| Rc::ptr_eq(now, changed))?;
        if old.hits.get() >= SELDOM {
            self.recordings = self.recordings.saturating_sub(1);
        } else {
            self.volatile.insert(owner);
        }
        Some(old)
    }
}
