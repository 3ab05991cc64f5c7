//! Guards: one kind a file, `source.rs` for the ways to reach values, `tree.rs` for the check of a whole list.
//!
//! In: `ir.guards.Guard` records.  Out: `Tree::check`, which says which guard fails, by its position in the list.
//! A kind is a row of `kinds!` below: it makes the enum, the builder by name and the dispatch.

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
use crate::ffi::{Obj, Owned, Quiet, Res};
use crate::handed::Handed;
use fallback::Oracle;
use fast::{Fast, Pins, Settled};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::rc::Rc;

/// A check of one value.  Neither `holds` nor `ask` leaves an exception set.
pub trait Kind: Sized {
    /// Cheap kinds run first at a node.
    const COST: u8;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self>;

    /// Whether it holds, without running Python code; `MayRunPython` when that does not tell.
    fn holds(&self, value: Obj) -> Quiet<bool>;

    /// The same where `holds` could not tell.  Python code may run: whatever else the walk borrows is held meanwhile.
    fn ask(&self, _value: &Owned) -> bool {
        false
    }

    /// For the fast path, asked before the check is made, of a `value` that may be anything: if the check holds for it, can words
    /// prove that it stays so?
    fn settle(&self, _value: Obj, _pins: &mut Pins) -> Settled {
        Settled::Recheck
    }
}

/// A check over several recorded values.
pub trait Relation: Sized {
    /// It looks into the values: evaluated in every check, over all of them in order.
    const REREADS: bool = false;

    fn build(arg: Obj, cx: &mut Build) -> Res<Self>;
    fn holds(&self, values: &[Obj]) -> bool;

    /// For the fast path: it held for the objects at `pinned` (ascending) and others; does it for them and `late`?
    fn holds_beside(&self, _pinned: &[usize], _late: &[Obj]) -> bool {
        false
    }
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

    /// A function of the evaluator, which the collector is shown as well.
    pub fn oracle(&mut self, row: &Handed) -> Res<Oracle> {
        let function = row.get()?;
        self.keep(function.get());
        Ok(Oracle(function))
    }

    pub fn adopt(&mut self, value: Owned) -> Obj {
        let borrowed = value.get();
        self.keep.push(value);
        borrowed
    }
}

/// The state of one check: values on the path from the root, and recorded ones.
///
/// Values are borrowed from their containers, for as long as steps are quiet.  Before a step that may run Python code all
/// that the check has borrowed, and the frame's locals, is held, to the end of the walk: what such code does to containers
/// takes nothing away from the check, from that of the next entry, or from what runs after it.
#[derive(Default)]
pub struct Walk {
    pub stack: SmallVec<[Option<Obj>; 24]>,
    pub records: SmallVec<[Option<Obj>; 16]>,
    /// Has the records that the last check did not read anew; set once its words proved them alive.
    pub pinned: Option<Rc<Fast>>,
    held: SmallVec<[Owned; 4]>,
    /// Python code ran.
    asked: bool,
    /// Recordings that are in use no more: dropping one may run finalizers.
    retired: SmallVec<[Rc<Fast>; 1]>,
}

impl Walk {
    /// The value at `depth`, which a step asks about: Python code may run.
    #[cold]
    #[inline(never)]
    pub fn hold(&mut self, depth: usize, value: Obj, locals: &[Option<Obj>]) -> Owned {
        if !std::mem::replace(&mut self.asked, true) {
            self.held.extend(locals.iter().flatten().map(|o| o.own()));
        }
        self.held.extend(self.stack.iter().take(depth + 1).flatten().map(|o| o.own()));
        self.hold_records();
        // What other subtrees left deeper on the stack is not held, and is not read again.
        self.stack.iter_mut().skip(depth + 1).for_each(|slot| *slot = None);
        value.own()
    }

    fn hold_records(&mut self) {
        let pinned = self.pinned.as_ref();
        self.held.extend(
            pinned
                .into_iter()
                .flat_map(|fast| fast.borrowed())
                .chain(self.records.iter().copied().flatten())
                .map(Obj::own),
        );
    }

    /// At the end of a successful check: what it recorded is used by what runs next, which anything may precede where
    /// Python code ran before.
    #[inline]
    pub fn settle(&mut self) {
        if self.asked {
            self.hold_records();
        }
    }

    /// Ready for another check.  What is held stays held.
    pub fn reset(&mut self) {
        self.records.clear();
        self.stack.fill(None);
        self.retired.extend(self.pinned.take());
    }

    /// Keeps a recording that nobody uses any more to the end of the walk.
    pub fn retire(&mut self, fast: Option<Rc<Fast>>) {
        self.retired.extend(fast);
    }

    /// The value that a successful check recorded.
    #[inline]
    pub fn record(&self, record: u16) -> Option<Obj> {
        let pinned = self.pinned.as_ref().and_then(|fast| fast.pinned_record(record));
        pinned.or_else(|| self.records.get(record as usize).copied().flatten())
    }

    /// The values of the inputs that a successful check recorded, in the order of `records`; borrowed.
    #[inline]
    pub fn inputs(&self, records: &[u16]) -> SmallVec<[Obj; 16]> {
        let late = |record: u16| self.records.get(record as usize).copied().flatten();
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

    /// What follows reads nothing of this check.
    pub fn let_go(&mut self) {
        self.held.clear();
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
            pub fn holds(&self, value: Obj) -> Quiet<bool> {
                match self { $(Check::$variant(check) => check.holds(value)),* }
            }

            pub fn ask(&self, value: &Owned) -> bool {
                match self { $(Check::$variant(check) => check.ask(value)),* }
            }

            pub fn settle(&self, value: Obj, pins: &mut Pins) -> Settled {
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
