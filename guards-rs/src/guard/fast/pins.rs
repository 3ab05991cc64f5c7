//! What words can watch: the vocabulary of `Kind::settle` and of the recorder.

use super::Fast;
use crate::ffi::dict_probe::{self, Sign};
use crate::ffi::tensor_words::{Known, Pattern};
use crate::ffi::torch::Layout;
use crate::ffi::words::{self, TypeVersion, Word};
use crate::ffi::Obj;
use std::collections::HashSet;

/// What `Kind::settle` says of a check on a pinned value.
#[derive(PartialEq, Eq)]
pub enum Settled {
    /// It holds as long as the words do.
    ByWords,
    /// It depends on no value, and is evaluated before anything is read.
    First,
    /// It must be evaluated.
    Recheck,
}

/// What a word says something about: the value read by a step, or what is reached from it.
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
pub struct Pin {
    pub value: Obj,
    pub op: u32,
}

/// What a kind's `settle` may ask to be watched.
pub struct Pins<'a> {
    pub fast: &'a mut Fast,
    pub volatile: &'a HashSet<Owner>,
    /// What the tree holds, by address.
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

    /// Whether a class is nobody's that lives as long as the recording does.
    fn is_mortal(&self, class: Obj) -> bool {
        words::may_end(class) && !self.kept.contains(&class.id())
    }

    fn dict_as(&mut self, dict: Obj, facet: Facet) -> bool {
        // A module's globals change all the time, for the script's own variables are there.
        if self.is_volatile(facet) || self.fast.globals.is_some_and(|(g, _)| g == dict) {
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
        match dict_probe::sign() {
            Sign::Event => self.fast.news.watch(dict, owner(self.op, facet)),
            Sign::Version => {
                self.push(words::dict_version(dict), facet);
                true
            }
            Sign::Nothing => false,
        }
    }

    /// Watches the contents of a dict; false when they change too often.
    pub fn dict(&mut self, dict: Obj) -> bool {
        self.dict_as(dict, Facet::DictContents)
    }

    /// Watches which dict is the instance dict of a value.
    pub fn instance_slot(&mut self, value: Obj, facet: Facet) -> Option<Obj> {
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

    /// Watches the attributes of a class; callers looked one up just now, and have pinned it.
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

    /// Watches what a tensor guard compares (the guard keeps the class alive); callers saw that it is of that class.
    pub fn tensor(&mut self, tensor: Obj, pattern: &Pattern, layout: Layout, device: bool) -> bool {
        if self.is_volatile(Facet::Tensor) {
            return false;
        }
        let owner = owner(self.op, Facet::Tensor);
        let fast = &mut *self.fast;
        if fast.tensors.is_none() {
            fast.tensors = Known::new(layout);
        }
        fast.tensors.as_mut().is_some_and(|known| known.add(tensor, pattern, layout, device, owner))
    }

    pub fn cell(&mut self, cell: Obj) {
        self.push(words::cell(cell), Facet::Read);
    }

    pub fn referent(&mut self, reference: Obj) {
        self.push(words::weakref_target(reference), Facet::Read);
    }

    /// Makes sure that no other object can be taken for `value`, whoever holds it.
    pub fn anchor(&mut self, value: Obj) -> bool {
        if value.is_plain_constant() || value.is_code() || value.is_tuple_of_constants() {
            self.fast.held.push(value.own());
            return true;
        }
        if value.is_weakref_exact() && !words::weakref_calls_back(value) {
            // Has no weak references, and keeps nothing alive; one with a callback would live for longer, and call it.
            self.fast.held.push(value.own());
            return true;
        }
        if value.is_dict_exact() || value.is_ordered_dict_exact() {
            // No weak references, but a version of its own.
            let class = words::class(value);
            let mark = self.fast.words.len();
            self.push(class, Facet::Read);
            let watched = self.dict(value);
            if !watched && self.fast.words.len() > mark {
                // Nothing proves that an unwatched dict lives, so none of its words may be read.
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
