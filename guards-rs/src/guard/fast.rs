//! The fast path: when nothing that a whole subtree was read through has changed, its guards need no evaluation.
//!
//! In: a tree whose check just succeeded, and the values it saw.  Out: `Fast`, a flat list of words of memory (dict versions,
//! type pointers, slots) in depth-first order, and the few checks that words cannot answer (tensors, most of all).
//!
//! Why it is sound.  A value is *pinned* when equal words prove that the path leads to the very object seen before:
//! - an item of a dict whose version is the same: the dict held it all the time, and no other dict has that version;
//! - an item of a pinned tuple, a part of a pinned method, the immutable parts of a pinned function;
//! - a class attribute, while the (strongly held) type has the same version;
//! - anything else that a slot holds (an instance dict aside, whose own version follows): the slot is the same and a weak
//!   reference to the object is alive, or a strong one is held (constants, code), so no other object can have its address.
//!
//! Words are read in an order in which the earlier ones prove that the later ones lie in live objects.  What can change
//! without a word is evaluated each time; a word that changes often (a counter in a module) is given up: `volatile`.

use super::source::{FunctionPart, Read};
use super::tree::{Op, Program};
use super::Walk;
use crate::ffi::torch::Layout;
use crate::ffi::words::{self, TypeVersion, Word};
use crate::ffi::{Obj, Owned};
use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;

/// A checked entry is recorded again after its words changed, up to this many times.
const MAX_RECORDINGS: u32 = 24;
/// A change after this many hits is not held against what changed, and its new recording does not count.
const SELDOM: u32 = 8;

/// What `Kind::settle` says of a check on a pinned value.
#[derive(PartialEq, Eq)]
pub enum Settled {
    /// It holds as long as the words do.
    ByWords,
    /// It depends on no value, and is evaluated before anything is read.
    First,
    /// It must be evaluated; it runs no Python code.
    Recheck,
    /// It must be evaluated and may run Python code.
    RecheckPython,
}

/// What a word says something about: the value read by a step, or what is reached from it.
#[derive(Clone, Copy)]
enum Facet {
    Read = 0,
    DictContents = 1,
    InstanceSlot = 2,
    InstanceContents = 3,
}

/// Names a facet of a step.
pub type Owner = u32;

fn owner(op: u32, facet: Facet) -> Owner {
    op * 4 + facet as u32
}

/// A pinned value, and the step that read it.
#[derive(Clone, Copy)]
struct Pin {
    value: Obj,
    op: u32,
}

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

#[derive(Default)]
pub struct Fast {
    roots: Vec<(usize, Obj, Owner)>,
    globals: Option<(Obj, Owner)>,
    versions: Vec<TypeVersion>,
    words: Vec<Word>,
    owners: Vec<Owner>,
    lookups: Vec<Lookup>,
    records: Vec<Option<Obj>>,
    /// Records that a residual fills.
    late_records: HashSet<u16>,
    first: Vec<Residual>,
    pure: Vec<Residual>,
    impure: Vec<Residual>,
    pub held: Vec<Owned>,
    hits: Cell<u32>,
}

pub enum Verdict {
    Holds,
    Fails(u32),
    /// Something changed that words watch.
    Changed(Owner),
}

/// What a kind's `settle` may ask to be watched.
pub struct Pins<'a> {
    fast: &'a mut Fast,
    volatile: &'a HashSet<Owner>,
    tagged: &'a mut HashSet<usize>,
    op: u32,
}

impl Pins<'_> {
    fn push(&mut self, word: Word, facet: Facet) {
        self.fast.words.push(word);
        self.fast.owners.push(owner(self.op, facet));
    }

    fn is_volatile(&self, facet: Facet) -> bool {
        self.volatile.contains(&owner(self.op, facet))
    }

    /// Watches the class of a value.
    pub fn class(&mut self, value: Obj) {
        self.fast.held.push(value.class().own());
        if !words::class_is_fixed(value) {
            self.push(words::class(value), Facet::Read);
        }
    }

    fn dict_as(&mut self, dict: Obj, facet: Facet) -> bool {
        // A module's globals change all the time, for the script's own variables are there.
        if self.is_volatile(facet) || self.fast.globals.is_some_and(|(g, _)| g == dict) {
            return false;
        }
        if self.tagged.insert(dict.id()) {
            self.push(words::dict_version(dict), facet);
        }
        true
    }

    /// Watches the contents of a dict; false when they change too often.
    pub fn dict(&mut self, dict: Obj) -> bool {
        self.dict_as(dict, Facet::DictContents)
    }

    /// Watches which dict is the instance dict of a value.
    fn instance_slot(&mut self, value: Obj, facet: Facet) -> Option<Obj> {
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

    /// Watches the attributes of a class; callers looked one up just now.
    pub fn class_attributes(&mut self, class: Obj) -> bool {
        let Some(version) = TypeVersion::of(class) else { return false };
        self.fast.held.push(class.own());
        self.fast.versions.push(version);
        true
    }

    pub fn list_length(&mut self, list: Obj) {
        self.push(words::list_length(list), Facet::Read);
    }

    /// Watches what a tensor guard compares; `compared` says which sizes and strides, in this order.
    pub fn tensor(&mut self, tensor: Obj, layout: Layout, compared: &[bool]) -> bool {
        let Some(words) = words::tensor(tensor, layout, compared) else { return false };
        self.class(tensor);
        words.into_iter().for_each(|w| self.push(w, Facet::Read));
        true
    }

    pub fn cell(&mut self, cell: Obj) {
        self.push(words::cell(cell), Facet::Read);
    }

    /// Makes sure that no other object can be taken for `value`, whoever holds it.
    fn anchor(&mut self, value: Obj) -> bool {
        if value.is_plain_constant() || value.is_code() || value.is_tuple_of_constants() {
            self.fast.held.push(value.own());
            return true;
        }
        if value.is_dict_exact() || value.is_ordered_dict_exact() {
            // No weak references, but a version of its own.
            self.push(words::class(value), Facet::Read);
            return self.dict(value);
        }
        let Some(reference) = words::weakref(value) else { return false };
        self.push(words::weakref_target(reference.get()), Facet::Read);
        self.fast.held.push(reference);
        true
    }
}

/// Builds a `Fast` from the steps of a tree and what they read now.
struct Recorder<'a> {
    program: &'a Program,
    fast: Fast,
    volatile: &'a HashSet<Owner>,
    tagged: HashSet<usize>,
    path: Vec<Option<Pin>>,
}

impl Recorder<'_> {
    fn pins(&mut self, op: u32) -> Pins<'_> {
        Pins { fast: &mut self.fast, volatile: self.volatile, tagged: &mut self.tagged, op }
    }

    fn set(&mut self, depth: usize, value: Obj, op: u32) {
        self.path.truncate(depth);
        self.path.push(Some(Pin { value, op }));
    }

    fn at(&self, depth: u16) -> Option<Pin> {
        self.path.get(depth as usize).copied().flatten()
    }

    /// Leaves the steps of the subtree at `i` to evaluation; the position after it.
    fn residual(&mut self, i: usize, parent: Option<(u16, Obj)>) -> usize {
        let end = self.program.subtree_end(i);
        for op in &self.program.ops[i..end] {
            if let Op::Record { record, .. } = op {
                self.fast.late_records.insert(*record);
            }
        }
        let pure = self.program.ops[i..end].iter().all(is_pure);
        let (at, value) = parent.map_or((0, None), |(at, value)| (at, Some(value)));
        let residual = Residual { start: i as u32, end: end as u32, at, value };
        if pure {
            self.fast.pure.push(residual)
        } else {
            self.fast.impure.push(residual)
        }
        end
    }

    /// Goes through all steps; None when a path cannot be read (then the check fails as well).
    fn run(&mut self, locals: &[Option<Obj>], globals: Obj) -> Option<()> {
        let mut i = 0;
        while let Some(op) = self.program.ops.get(i) {
            let step = i as u32;
            i = match op {
                Op::Local { slot, .. } => {
                    let value = locals.get(*slot).copied().flatten()?;
                    let leaf = !matches!(self.program.ops.get(i + 1..self.program.subtree_end(i)), Some(ops) if ops.iter().any(|o| matches!(o, Op::Read { .. })));
                    if leaf || self.volatile.contains(&owner(step, Facet::Read)) || !self.pins(step).anchor(value) {
                        self.residual(i, None)
                    } else {
                        self.fast.roots.push((*slot, value, owner(step, Facet::Read)));
                        self.set(0, value, step);
                        i + 1
                    }
                }
                Op::Globals => {
                    self.fast.globals = Some((globals, owner(step, Facet::Read)));
                    self.set(0, globals, step);
                    i + 1
                }
                Op::Const(value) => {
                    self.set(0, *value, step);
                    i + 1
                }
                Op::Read { read, depth, .. } => {
                    let parent = self.at(*depth - 1)?;
                    match self.pin(read, parent, step) {
                        Some(value) => {
                            self.set(*depth as usize, value, step);
                            i + 1
                        }
                        None => self.residual(i, Some((*depth - 1, parent.value))),
                    }
                }
                Op::Check { check, depth, .. } => {
                    let pin = self.at(*depth)?;
                    let settled = check.settle(pin.value, &mut self.pins(pin.op));
                    let residual = Residual { start: step, end: step + 1, at: *depth, value: Some(pin.value) };
                    match settled {
                        Settled::ByWords => {}
                        Settled::First => self.fast.first.push(residual),
                        Settled::Recheck => self.fast.pure.push(residual),
                        Settled::RecheckPython => self.fast.impure.push(residual),
                    }
                    i + 1
                }
                Op::Record { depth, record } => {
                    self.fast.records[*record as usize] = Some(self.at(*depth)?.value);
                    i + 1
                }
            };
        }
        Some(())
    }

    /// The value of a read below a pinned one, if words can prove it; reads it now.
    fn pin(&mut self, read: &Read, parent: Pin, op: u32) -> Option<Obj> {
        let base = parent.value;
        match read {
            Read::InstanceDict(_) => self.pins(op).instance_slot(base, Facet::Read),
            Read::DictItem(key) if base.is_dict() && key.is_plain_key() => self.dict_item(parent, *key, op),
            Read::DictKeyAt(i) if base.is_dict_exact() && self.pins(parent.op).dict(base) => {
                let mut pos = 0;
                (0..*i).try_for_each(|_| base.dict_next(&mut pos).map(|_| ()))?;
                base.dict_next(&mut pos).map(|(key, _)| key)
            }
            Read::Type => {
                self.pins(op).class(base);
                Some(base.class())
            }
            Read::MroLookup(name) => {
                let value = base.mro_lookup(*name)?;
                self.pins(op).class_attributes(base).then_some(value)
            }
            Read::Item(i) if base.is_tuple() => {
                let i = if *i < 0 { usize::try_from(i + base.tuple_len() as i64).ok()? } else { *i as usize };
                (i < base.tuple_len()).then(|| base.tuple_item(i))
            }
            Read::Item(i) if base.is_list_exact() && *i >= 0 && !self.volatile.contains(&owner(op, Facet::Read)) => {
                let value = base.list_item(*i as usize)?;
                let mut pins = self.pins(op);
                pins.list_length(base);
                words::list_item(base, *i as usize).into_iter().for_each(|w| pins.push(w, Facet::Read));
                pins.anchor(value).then_some(value)
            }
            Read::Cell if base.is_cell() && !self.volatile.contains(&owner(op, Facet::Read)) => {
                let value = base.cell_get()?;
                let mut pins = self.pins(op);
                pins.cell(base);
                pins.anchor(value).then_some(value)
            }
            Read::Function(part, _) if base.is_function() => self.function_part(base, *part, op),
            Read::MethodSelf(_) if base.is_method() => Some(base.method_self()),
            Read::MethodFunc(_) if base.is_method() => Some(base.method_func()),
            _ => None,
        }
    }

    fn dict_item(&mut self, dict: Pin, key: Obj, op: u32) -> Option<Obj> {
        let value = super::fallback::or_none(dict.value.dict_get(key)).flatten()?;
        if self.pins(dict.op).dict(dict.value) {
            return Some(value);
        }
        if self.volatile.contains(&owner(op, Facet::Read)) {
            return None;
        }
        // The lookup comes before the words that its value needs.
        let lookup =
            Lookup { after: self.fast.words.len(), dict: dict.value, key, value, owner: owner(op, Facet::Read) };
        self.fast.lookups.push(lookup);
        if self.pins(op).anchor(value) {
            return Some(value);
        }
        self.fast.lookups.pop();
        None
    }

    fn function_part(&mut self, f: Obj, part: FunctionPart, op: u32) -> Option<Obj> {
        if self.volatile.contains(&owner(op, Facet::Read)) {
            return None;
        }
        let (word, value) = match part {
            // Fixed for the life of a function.
            FunctionPart::Globals => return Some(f.func_globals()),
            FunctionPart::Closure => return Some(f.func_closure().unwrap_or(Obj::none())),
            FunctionPart::Code => (words::function_code(f), f.func_code()),
            FunctionPart::Defaults => (words::function_defaults(f), f.func_defaults().unwrap_or(Obj::none())),
            FunctionPart::KwDefaults => (words::function_kwdefaults(f), f.func_kwdefaults().unwrap_or(Obj::none())),
        };
        self.pins(op).push(word, Facet::Read);
        self.fast.held.push(value.own());
        Some(value)
    }
}

/// Steps that run no Python code and keep nothing.
fn is_pure(op: &Op) -> bool {
    match op {
        Op::Local { .. } | Op::Globals | Op::Const(_) | Op::Record { .. } => true,
        Op::Check { check, .. } => check.is_pure(),
        Op::Read { .. } => false,
    }
}

impl Fast {
    /// What the tree's check may rely on next time, or None when a path cannot be read.
    pub fn record(
        program: &Program,
        n_records: usize,
        locals: &[Option<Obj>],
        globals: Obj,
        volatile: &HashSet<Owner>,
    ) -> Option<Fast> {
        let fast = Fast { records: vec![None; n_records], ..Fast::default() };
        let mut recorder = Recorder { program, fast, volatile, tagged: HashSet::new(), path: vec![] };
        recorder.run(locals, globals)?;
        Some(recorder.fast)
    }

    /// Whether it spares more than it costs.
    pub fn is_worth_it(&self) -> bool {
        self.words.len() >= 4
    }

    pub fn pinned_record(&self, record: u16) -> bool {
        !self.late_records.contains(&record)
    }

    /// The first watched thing that changed.
    #[inline]
    fn changed(&self, locals: &[Option<Obj>], globals: Obj) -> Option<Owner> {
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
            if super::fallback::or_none(lookup.dict.dict_get(lookup.key)).flatten() != Some(lookup.value) {
                return Some(lookup.owner);
            }
        }
        words::first_changed(&self.words[done..]).map(|i| self.owners[done + i])
    }

    pub fn unchanged(&self, locals: &[Option<Obj>], globals: Obj) -> bool {
        self.changed(locals, globals).is_none()
    }

    /// The check: words first, then what they cannot answer.
    #[inline]
    pub fn check(&self, program: &Program, locals: &[Option<Obj>], globals: Obj, walk: &mut Walk) -> Verdict {
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
        walk.records.extend_from_slice(&self.records);
        for residual in &self.pure {
            if let Err(index) = run(residual, walk) {
                return Verdict::Fails(index);
            }
        }
        if !self.impure.is_empty() {
            self.hold(walk);
            for residual in &self.impure {
                // What other residuals left there may be gone.
                walk.stack.fill(None);
                if let Err(index) = run(residual, walk) {
                    return Verdict::Fails(index);
                }
            }
        }
        self.hits.set(self.hits.get().saturating_add(1));
        Verdict::Holds
    }

    /// Before Python code may run: what is still needed is held.
    fn hold(&self, walk: &mut Walk) {
        let values = self.impure.iter().filter_map(|r| r.value);
        let needed: Vec<Owned> = values.chain(walk.records.iter().copied().flatten()).map(Obj::own).collect();
        for owned in needed {
            walk.keep(owned);
        }
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

    pub fn store(&mut self, fast: Fast) {
        self.recordings += 1;
        if fast.is_worth_it() {
            self.current = Some(Rc::new(fast));
        } else {
            self.useless = true;
        }
    }

    /// The guards hold although a watched thing changed.  What changes often is watched no more.
    #[must_use]
    pub fn give_up(&mut self, owner: Owner) -> Option<Rc<Fast>> {
        let old = self.current.take();
        if old.as_ref().is_some_and(|fast| fast.hits.get() >= SELDOM) {
            self.recordings = self.recordings.saturating_sub(1);
        } else {
            self.volatile.insert(owner);
        }
        old
    }
}
