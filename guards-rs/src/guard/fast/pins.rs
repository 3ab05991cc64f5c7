//! Pins: the words that `Kind::settle` and the recorder can add to a recording.

use super::Fast;
use crate::ffi::dict_probe::{self, ChangeSign};
use crate::ffi::tensor_words::{Pattern, RecordedTensors};
use crate::ffi::torch::Layout;
use crate::ffi::words::{self, TypeVersion, Word};
use crate::ffi::Obj;
use std::collections::HashSet;

/// The answer of `Kind::settle` for a check on a pinned value.
#[derive(PartialEq, Eq)]
pub enum PinnedAnswer {
    /// The check holds as long as the words are unchanged.
    ByWords,
    /// The check depends on no value.  It is evaluated before anything is read.
    First,
    /// The check must be evaluated each time.
    Recheck,
}

/// The part of a value that a word watches: the value itself as a step read it, or an object reached from it.
#[derive(Clone, Copy)]
pub enum Facet {
    Read = 0,
    DictContents = 1,
    InstanceSlot = 2,
    InstanceContents = 3,
    Tensor = 4,
}

/// Names a facet of a step.
pub type Owner = u32;

pub fn owner(op: u32, facet: Facet) -> Owner {
    op * 8 + facet as u32
}

/// A pinned value, and the step that read it.
#[derive(Clone, Copy)]
pub struct Pin<'a> {
    pub value: Obj<'a>,
    pub op: u32,
}

/// Methods with which a kind's `settle` adds words to a recording.
pub struct Pins<'a> {
    pub fast: &'a mut Fast,
    pub volatile: &'a HashSet<Owner>,
    /// Addresses of the objects that the tree holds.
    pub kept: &'a HashSet<usize>,
    pub tagged: &'a mut HashSet<usize>,
    pub pushed: &'a mut HashSet<Word>,
    pub op: u32,
}

impl Pins<'_> {
    pub fn push(&mut self, word: Word, facet: Facet) {
        if self.pushed.insert(word) {
            self.fast.words.push(word);
            self.fast.owners.push(owner(self.op, facet));
        }
    }

    fn is_volatile(&self, facet: Facet) -> bool {
        self.volatile.contains(&owner(self.op, facet))
    }

    /// Watches the class of a value.
    pub fn class(&mut self, value: Obj) {
        let word = words::class(value);
        if self.pushed.contains(&word) {
            return;
        }
        let class = value.class();
        if words::class_is_fixed(value) {
            self.fast.held.push(class.own());
            self.pushed.insert(word);
            return;
        }
        self.push(word, Facet::Read);
        let reference = if self.is_mortal(class) { words::weakref(class) } else { None };
        if let Some(reference) = &reference {
            self.push(words::weakref_target(reference.get()), Facet::Read);
        }
        self.fast.held.push(reference.unwrap_or_else(|| class.own()));
    }

    /// Whether a class may die before the recording does: the tree does not hold it.
    fn is_mortal(&self, class: Obj) -> bool {
        words::may_end(class) && !self.kept.contains(&class.id())
    }

    fn dict_as(&mut self, dict: Obj, facet: Facet) -> bool {
        // The globals of a module change all the time, because they include the script's own variables.
        if self.is_volatile(facet) || self.fast.globals.is_some_and(|(g, _)| g == dict.store()) {
            return false;
        }
        if self.tagged.contains(&dict.id()) {
            return true;
        }
        let watched = dict_probe::prepare(dict) && self.watch(dict, facet);
        if watched {
            self.tagged.insert(dict.id());
        }
        watched
    }

    fn watch(&mut self, dict: Obj, facet: Facet) -> bool {
        match dict_probe::sign(dict.py()) {
            ChangeSign::Event => self.fast.news.watch(dict, owner(self.op, facet)),
            ChangeSign::Version => {
                self.push(words::dict_version(dict), facet);
                true
            }
            ChangeSign::Nothing => false,
        }
    }

    /// Watches the contents of a dict; false when they change too often.
    pub fn dict(&mut self, dict: Obj) -> bool {
        self.dict_as(dict, Facet::DictContents)
    }

    /// Watches which dict is the instance dict of a value.
    pub fn instance_slot<'a>(&mut self, value: Obj<'a>, facet: Facet) -> Option<Obj<'a>> {
        if self.is_volatile(facet) {
            return None;
        }
        let dict = value.instance_dict()?;
        let slot = words::dict_slot(value)?;
        self.class(value);
        self.push(slot, facet);
        Some(dict)
    }

    /// Watches the instance dict of a value, and its contents.
    pub fn instance(&mut self, value: Obj) -> bool {
        self.instance_slot(value, Facet::InstanceSlot).is_some_and(|dict| self.dict_as(dict, Facet::InstanceContents))
    }

    /// Watches the attributes of a class.  The caller has just looked up an attribute, and has pinned the class.
    pub fn class_attributes(&mut self, class: Obj) -> bool {
        let Some(version) = TypeVersion::of(class) else { return false };
        if self.is_mortal(class) {
            if self.is_volatile(Facet::Read) {
                return false;
            }
            self.push(words::type_version(class), Facet::Read);
            return true;
        }
        self.fast.held.push(class.own());
        self.fast.versions.push(version);
        true
    }

    pub fn list_length(&mut self, list: Obj) {
        self.push(words::list_length(list), Facet::Read);
    }

    /// Watches the words that a tensor guard compares.  The guard keeps the class alive, and the caller has checked the
    /// class.
    pub fn tensor(&mut self, tensor: Obj, pattern: &Pattern, layout: Layout, device: bool) -> bool {
        if self.is_volatile(Facet::Tensor) {
            return false;
        }
        let owner = owner(self.op, Facet::Tensor);
        let fast = &mut *self.fast;
        if fast.tensors.is_none() {
            fast.tensors = RecordedTensors::new(layout);
        }
        fast.tensors.as_mut().is_some_and(|known| known.add(tensor, pattern, layout, device, owner))
    }

    pub fn cell(&mut self, cell: Obj) {
        self.push(words::cell(cell), Facet::Read);
    }

    pub fn referent(&mut self, reference: Obj) {
        self.push(words::weakref_target(reference), Facet::Read);
    }

    /// Ensures that no other object can be mistaken for `value`, whatever holds `value`.
    pub fn anchor(&mut self, value: Obj) -> bool {
        if value.is_plain_constant() || value.is_code() || value.is_tuple_of_constants() {
            self.fast.held.push(value.own());
            return true;
        }
        if value.is_weakref_exact() && !words::weakref_calls_back(value) {
            // Such a weak reference has no weak references itself, and keeps nothing alive.  One with a callback would
            // live longer because of us, and would call it.
            self.fast.held.push(value.own());
            return true;
        }
        if value.is_dict_exact() || value.is_ordered_dict_exact() {
            // A dict has no weak references, but a version of its own.
            let class = words::class(value);
            let mark = self.fast.words.len();
            self.push(class, Facet::Read);
            let watched = self.dict(value);
            if !watched && self.fast.words.len() > mark {
                // Nothing proves that an unwatched dict is alive, so its words must not be read.
                self.fast.words.truncate(mark);
                self.fast.owners.truncate(mark);
                self.pushed.remove(&class);
            }
            return watched;
        }
        let Some(reference) = words::weakref(value) else { return false };
        self.push(words::weakref_target(reference.get()), Facet::Read);
        self.fast.held.push(reference);
        true
    }
}
