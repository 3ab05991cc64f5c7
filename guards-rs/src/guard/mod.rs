//! Guards: one kind a file, `source.rs` for the ways to reach values, `tree.rs` for the check of a whole list.
//!
//! In: `ir.guards.Guard` records.  Out: `Tree::check`, which says which guard fails, by its position in the list.
//! A kind is a row of `kinds!` below: it makes the enum, the builder by name and the dispatch.

mod cell_empty;
mod class_absent;
mod dict_absent;
mod dict_contains;
mod dict_keys;
mod equals;
pub mod fallback;
pub mod fast;
mod global_state;
mod id_is;
mod instance_absent;
mod length;
mod no_alias;
mod same_object;
mod set_equals;
pub mod source;
mod tensor;
pub mod tree;
mod truth;
mod type_is;

use crate::ffi::object::{value_error, Raised};
use crate::ffi::tensor_words::Pattern;
use crate::ffi::{Obj, Owned, Res};
use fast::{Fast, Pins, Settled};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::rc::Rc;

/// A check of one value.  `holds` never leaves an exception set.
pub trait Kind: Sized {
    /// Cheap kinds run first at a node.
    const COST: u8;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self>;
    fn holds(&self, value: Obj, walk: &mut Walk) -> bool;

    /// Whether `holds` never runs Python code.
    fn is_pure(&self) -> bool {
        false
    }

    /// The exact class of every value for which it holds.
    fn class(&self) -> Option<Obj> {
        None
    }

    /// Whether `holds` never runs Python code on values of this exact class.
    fn is_pure_on(&self, _class: Obj) -> bool {
        self.is_pure()
    }

    /// For the fast path: the check holds for the pinned `value`; can words prove that it stays so?
    fn settle(&self, _value: Obj, _pins: &mut Pins) -> Settled {
        if self.is_pure() {
            Settled::Recheck
        } else {
            Settled::RecheckPython
        }
    }
}

/// A check over several recorded values.
pub trait Relation: Sized {
    fn build(arg: Obj) -> Res<Self>;
    fn holds(&self, values: &mut dyn Iterator<Item = Obj>) -> bool;

    /// For the fast path: it held for the objects at `pinned` (ascending) and others; does it for them and `late`?
    fn holds_beside(&self, pinned: &[usize], late: &[Obj]) -> bool;
}

/// Objects that the checks compare with; the owner of the tree keeps them alive and shows them to the collector.
#[derive(Default)]
pub struct Build {
    pub keep: Vec<Owned>,
    /// Shared by the tensor guards of a tree.
    pub alike: HashMap<(Pattern, bool), Rc<tensor::Alike>>,
}

impl Build {
    pub fn keep(&mut self, value: Obj) -> Obj {
        self.keep.push(value.own());
        value
    }

    pub fn adopt(&mut self, value: Owned) -> Obj {
        let borrowed = value.get();
        self.keep.push(value);
        borrowed
    }
}

/// The state of one check: values on the path from the root, and recorded ones.
///
/// Values are borrowed from their containers.  A step that may run Python code calls `hold` first, so that what the
/// rest of the check (or the plan that runs after it) still uses outlives any change that the code makes.
#[derive(Default)]
pub struct Walk {
    pub stack: SmallVec<[Option<Obj>; 24]>,
    pub depth: usize,
    pub records: SmallVec<[Option<Obj>; 16]>,
    /// Has the records that the last check did not read anew.
    pub pinned: Option<Rc<Fast>>,
    held: SmallVec<[Owned; 4]>,
}

impl Walk {
    pub fn hold(&mut self) {
        let path = self.stack.iter().take(self.depth + 1);
        self.held.extend(path.chain(&self.records).flatten().map(|o| o.own()));
    }

    /// Ready for another check; drops what was held.
    pub fn reset(&mut self) {
        self.records.clear();
        self.pinned = None;
        let held = std::mem::take(&mut self.held);
        drop(held);
    }

    /// The value that a successful check recorded.
    #[inline]
    pub fn record(&self, record: u16) -> Option<Obj> {
        let pinned = self.pinned.as_ref().and_then(|fast| fast.pinned_record(record));
        pinned.or_else(|| self.records.get(record as usize).copied().flatten())
    }

    /// The values of the inputs that a successful check recorded, in the order of `records`.
    #[inline]
    pub fn inputs(&self, records: &[u16]) -> SmallVec<[Owned; 16]> {
        let mut out = SmallVec::with_capacity(records.len());
        let late = |record: &u16| self.records.get(*record as usize).copied().flatten();
        match &self.pinned {
            Some(fast) => {
                let values =
                    fast.inputs().iter().zip(records).filter_map(|(pinned, record)| pinned.or_else(|| late(record)));
                out.extend(values.map(Obj::own));
            }
            None => out.extend(records.iter().filter_map(late).map(Obj::own)),
        }
        out
    }

    /// Keeps a new reference until the walk's end.
    pub fn keep(&mut self, value: Owned) -> Obj {
        let borrowed = value.get();
        self.held.push(value);
        borrowed
    }
}

macro_rules! kinds {
    (values: $($name:literal $variant:ident $path:path;)* relations: $($rname:literal $rvariant:ident $rpath:path;)*) => {
        pub enum Check { $($variant($path)),* }

        impl Check {
            pub fn build(kind: &str, arg: Obj, cx: &mut Build) -> Res<Check> {
                match kind {
                    $($name => <$path as Kind>::build(arg, cx).map(Check::$variant),)*
                    _ => Err(unknown(kind)),
                }
            }

            pub fn cost(&self) -> u8 {
                match self { $(Check::$variant(_) => <$path as Kind>::COST),* }
            }

            #[inline]
            pub fn holds(&self, value: Obj, walk: &mut Walk) -> bool {
                match self { $(Check::$variant(check) => check.holds(value, walk)),* }
            }

            pub fn is_pure(&self) -> bool {
                match self { $(Check::$variant(check) => check.is_pure()),* }
            }

            pub fn class(&self) -> Option<Obj> {
                match self { $(Check::$variant(check) => check.class()),* }
            }

            pub fn is_pure_on(&self, class: Obj) -> bool {
                match self { $(Check::$variant(check) => check.is_pure_on(class)),* }
            }

            pub fn settle(&self, value: Obj, pins: &mut Pins) -> Settled {
                match self { $(Check::$variant(check) => check.settle(value, pins)),* }
            }
        }

        pub enum Relational { $($rvariant($rpath)),* }

        impl Relational {
            pub fn build(kind: &str, arg: Obj) -> Option<Res<Relational>> {
                match kind {
                    $($rname => Some(<$rpath as Relation>::build(arg).map(Relational::$rvariant)),)*
                    _ => None,
                }
            }

            pub fn holds(&self, values: &mut dyn Iterator<Item = Obj>) -> bool {
                match self { $(Relational::$rvariant(check) => check.holds(values)),* }
            }

            pub fn holds_beside(&self, pinned: &[usize], late: &[Obj]) -> bool {
                match self { $(Relational::$rvariant(check) => check.holds_beside(pinned, late)),* }
            }
        }

        /// The names of all kinds, to compare with `ir.guards.GUARD_KINDS`.
        pub const KIND_NAMES: &[&str] = &[$($name,)* $($rname,)*];
    };
}

kinds! {
values:
    "type_is" TypeIs type_is::TypeIs;
    "id_is" IdIs id_is::IdIs;
    "equals" Equals equals::Equals;
    "tensor" Tensor tensor::Tensor;
    "length" Length length::Length;
    "dict_keys" DictKeys dict_keys::DictKeys;
    "dict_contains" DictContains dict_contains::DictContains;
    "dict_absent" DictAbsent dict_absent::DictAbsent;
    "set_equals" SetEquals set_equals::SetEquals;
    "instance_absent" InstanceAbsent instance_absent::InstanceAbsent;
    "class_absent" ClassAbsent class_absent::ClassAbsent;
    "truth" Truth truth::Truth;
    "cell_empty" CellEmpty cell_empty::CellEmpty;
    "global_state" GlobalState global_state::GlobalState;
relations:
    "no_alias" NoAlias no_alias::NoAlias;
    "same_object" SameObject same_object::SameObject;
}

fn unknown(kind: &str) -> Raised {
    value_error(&format!("unknown guard kind {kind:?}; known: {}", KIND_NAMES.join(", ")))
}
