//! Guards: one file for each kind, `source.rs` for the accessors, `tree.rs` for the check of a whole guard list.
//!
//! In: `ir.guards.Guard` records.  Out: `Tree::check`, which returns the position of the guard that fails.  A kind is a
//! row of `kinds!` below.  The macro generates the enum, the builder by name and the dispatch.
//!
//! Reading order: this file, a kind such as `equals.rs`, `source.rs`, `tree.rs`, `tensor.rs`, then `fast/mod.rs`.

mod cell_empty;
mod class_absent;
mod data;
mod decision;
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
mod methods;
mod no_alias;
pub mod plain_state;
pub mod profile;
mod same_object;
mod set_equals;
mod sizes;
pub mod source;
mod tensor;
pub mod tree;
mod truth;
mod type_is;

use crate::ffi::object::{value_error, Raised};
use crate::ffi::tensor_words::Pattern;
use crate::ffi::{Obj, Owned, Quiet, Res, Stored};
use crate::registered_object::RegisteredObject;
use fallback::Oracle;
use fast::{Fast, PinnedAnswer, Pins};
use pyo3::Python;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::rc::Rc;

/// A check of one value.  Neither `holds` nor `ask` leaves an exception set.
pub trait Kind: Sized {
    /// Cheap kinds run first at a node.
    const COST: u8;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self>;

    /// Whether the guard holds, without running Python code.  `MayRunPython` when only Python code can decide.
    fn holds(&self, value: Obj) -> Quiet<bool>;

    /// The same check after `holds` returned `MayRunPython`.  Python code may run; the walk holds all its borrowed
    /// values meanwhile.
    fn ask(&self, _value: &Owned) -> bool {
        false
    }

    /// For the fast path: if the check holds for `value`, can recorded words prove that it stays so?  The recorder
    /// calls this before the check runs, so `value` may be any object.
    fn settle(&self, _value: Obj, _pins: &mut Pins) -> PinnedAnswer {
        PinnedAnswer::Recheck
    }
}

/// A check over several recorded values, such as `no_alias`.
pub trait Relation: Sized {
    /// Whether the relation reads inside the values.  Then every check evaluates it, over all values in order.
    const REREADS: bool = false;

    fn build(arg: Obj, cx: &mut Build) -> Res<Self>;
    fn holds(&self, values: &[Obj]) -> bool;

    /// For the fast path: the relation held for the objects at addresses `pinned` (ascending) and some others.  Does it
    /// hold for `pinned` and `late`?
    fn holds_beside(&self, _pinned: &[usize], _late: &[Obj]) -> bool {
        false
    }
}

/// The state of a build.  `keep` has the objects that the checks compare with (rule *stored*): the tree owns them as long
/// as its steps, and its owner shows them to the garbage collector.
#[derive(Default)]
pub struct Build {
    pub keep: Vec<Owned>,
    /// Shared by the tensor guards of a tree.
    pub alike: HashMap<(Pattern, bool), Rc<tensor::LayoutWords>>,
}

impl Build {
    pub fn keep(&mut self, value: Obj) -> Stored {
        self.keep.push(value.own());
        value.store()
    }

    /// A function of the Python evaluator, which the garbage collector visits too.
    pub fn oracle(&mut self, py: Python<'_>, row: &RegisteredObject) -> Res<Oracle> {
        let function = row.get(py)?;
        self.keep(function.get());
        Ok(Oracle(function))
    }

    pub fn adopt(&mut self, value: Owned) -> Stored {
        let borrowed = value.get().store();
        self.keep.push(value);
        borrowed
    }
}

/// The state of one check: the values on the path from the root, and the recorded values.
///
/// Values are borrowed from their containers while steps run no Python code.  Before a step that may run Python code,
/// the walk takes references to all borrowed values and to the frame's locals, and keeps them until it ends.  Python
/// code can then change containers without freeing a value that this check, the next entry's check, or later code uses.
/// So the owner of a `Stored` here (rule *stored*) is its container, or `held`.
#[derive(Default)]
pub struct GuardWalk {
    pub stack: SmallVec<[Option<Stored>; 24]>,
    pub records: SmallVec<[Option<Stored>; 16]>,
    /// Has the records that the last check did not read again.  Set only after the words have proved those records
    /// alive.
    pub pinned: Option<Rc<Fast>>,
    held: SmallVec<[Owned; 4]>,
    /// Whether Python code ran.
    asked: bool,
    /// Recordings that are no longer used.  They are dropped with the walk, because a drop may run finalizers.
    retired: SmallVec<[Rc<Fast>; 1]>,
}

impl GuardWalk {
    /// Takes references before a step on the value at `depth` runs Python code.  Returns an owned `value`.
    #[cold]
    #[inline(never)]
    pub fn hold(&mut self, depth: usize, value: Obj, locals: &[Option<Stored>]) -> Owned {
        if !std::mem::replace(&mut self.asked, true) {
            self.held.extend(locals.iter().flatten().map(|o| o.get().own()));
        }
        self.held.extend(self.stack.iter().take(depth + 1).flatten().map(|o| o.get().own()));
        self.hold_records();
        // Values that other subtrees left deeper on the stack are not held, so they must not be read again.
        self.stack.iter_mut().skip(depth + 1).for_each(|slot| *slot = None);
        value.own()
    }

    fn hold_records(&mut self) {
        let pinned = self.pinned.as_ref();
        self.held.extend(
            pinned
                .into_iter()
                .flat_map(|fast| fast.borrowed())
                .chain(self.records.iter().flatten().map(Stored::get))
                .map(Obj::own),
        );
    }

    /// Ends a successful check.  If Python code ran, the records are held: later code uses them, and anything may run
    /// before it.
    #[inline]
    pub fn settle(&mut self) {
        if self.asked {
            self.hold_records();
        }
    }

    /// Prepares the walk for another check.  Held references stay held.
    pub fn reset(&mut self) {
        self.records.clear();
        self.stack.fill(None);
        self.retired.extend(self.pinned.take());
    }

    /// Keeps an unused recording until the walk ends.
    pub fn retire(&mut self, fast: Option<Rc<Fast>>) {
        self.retired.extend(fast);
    }

    /// The value that a successful check recorded.
    #[inline]
    pub fn record(&self, record: u16) -> Option<Obj<'_>> {
        let pinned = self.pinned.as_ref().and_then(|fast| fast.pinned_record(record));
        pinned.or_else(|| self.records.get(record as usize)?.as_ref().map(Stored::get))
    }

    /// The values of the inputs that a successful check recorded, in the order of `records`; borrowed.
    #[inline]
    pub fn inputs(&self, records: &[u16]) -> SmallVec<[Obj<'_>; 16]> {
        let late = |record: u16| self.records.get(record as usize)?.as_ref().map(Stored::get);
        let Some(fast) = &self.pinned else {
            return records.iter().filter_map(|record| late(*record)).collect();
        };
        let mut out = SmallVec::from_slice(fast.inputs());
        for (at, record) in fast.late_inputs() {
            if let Some(value) = late(*record) {
                out[*at] = value;
            }
        }
        out
    }

    /// Drops the held references.  Code after this call must read nothing of the check.
    pub fn let_go(&mut self) {
        self.held.clear();
    }

    /// Keeps a new reference until the walk's end.
    pub fn keep(&mut self, value: Owned) -> Stored {
        let borrowed = value.get().store();
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
            pub fn holds(&self, value: Obj) -> Quiet<bool> {
                match self { $(Check::$variant(check) => check.holds(value)),* }
            }

            pub fn ask(&self, value: &Owned) -> bool {
                match self { $(Check::$variant(check) => check.ask(value)),* }
            }

            pub fn settle(&self, value: Obj, pins: &mut Pins) -> PinnedAnswer {
                match self { $(Check::$variant(check) => check.settle(value, pins)),* }
            }
        }

        pub enum Relational { $($rvariant($rpath)),* }

        impl Relational {
            pub fn build(kind: &str, arg: Obj, cx: &mut Build) -> Option<Res<Relational>> {
                match kind {
                    $($rname => Some(<$rpath as Relation>::build(arg, cx).map(Relational::$rvariant)),)*
                    _ => None,
                }
            }

            pub fn rereads(&self) -> bool {
                match self { $(Relational::$rvariant(_) => <$rpath as Relation>::REREADS),* }
            }

            pub fn holds(&self, values: &[Obj]) -> bool {
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
    "sizes" Sizes sizes::Sizes;
    "data" Data data::Data;
}

fn unknown(kind: &str) -> Raised {
    value_error(&format!("unknown guard kind {kind:?}; known: {}", KIND_NAMES.join(", ")))
}
