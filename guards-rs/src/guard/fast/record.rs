//! Recording: builds a `Fast` from the steps of a tree and the values that they read now.

use super::pins::{owner, Facet, Owner, Pin, PinnedAnswer, Pins};
use super::{Fast, Lookup, Residual};
use crate::ffi::words::{self, Word};
use crate::ffi::{Obj, Stored};
use crate::guard::source::{FunctionPart, Key, Read};
use crate::guard::tree::{Op, Program};
use std::collections::HashSet;

/// Builds a `Fast` from the steps of a tree and the values that they read now.
pub struct Recorder<'a> {
    program: &'a Program,
    pub fast: Fast,
    volatile: &'a HashSet<Owner>,
    /// Addresses of the objects that the tree holds.
    kept: HashSet<usize>,
    tagged: HashSet<usize>,
    pushed: HashSet<Word>,
    path: Vec<Option<Pin<'a>>>,
}

impl<'a> Recorder<'a> {
    pub fn new(program: &'a Program, fast: Fast, volatile: &'a HashSet<Owner>, kept: HashSet<usize>) -> Self {
        Recorder { program, fast, volatile, kept, tagged: HashSet::new(), pushed: HashSet::new(), path: vec![] }
    }

    fn pins(&mut self, op: u32) -> Pins<'_> {
        let kept = &self.kept;
        Pins {
            fast: &mut self.fast,
            volatile: self.volatile,
            kept,
            tagged: &mut self.tagged,
            pushed: &mut self.pushed,
            op,
        }
    }

    fn set(&mut self, depth: usize, value: Obj<'a>, op: u32) {
        self.path.truncate(depth);
        self.path.push(Some(Pin { value, op }));
    }

    fn at(&self, depth: u16) -> Option<Pin<'a>> {
        self.path.get(depth as usize).copied().flatten()
    }

    /// Leaves the steps of the subtree at `i` to evaluation.  Returns the position after the subtree.
    fn residual(&mut self, i: usize, parent: Option<(u16, Obj)>) -> usize {
        let end = self.program.subtree_end(i);
        for op in &self.program.ops[i..end] {
            if let Op::Record { record, .. } = op {
                self.fast.late_records.insert(*record);
            }
        }
        let (at, value) = parent.map_or((0, None), |(at, value)| (at, Some(value.store())));
        self.fast.residuals.push(Residual { start: i as u32, end: end as u32, at, value });
        end
    }

    /// Visits all steps.  None when a path cannot be read; the check fails then too.
    pub fn run(&mut self, locals: &'a [Option<Stored>], globals: Obj<'a>) -> Option<()> {
        let mut i = 0;
        while let Some(op) = self.program.ops.get(i) {
            let step = i as u32;
            i = match op {
                Op::Local { slot, .. } => {
                    let value = locals.get(*slot)?.as_ref()?.get();
                    let leaf = !matches!(self.program.ops.get(i + 1..self.program.subtree_end(i)), Some(ops) if ops.iter().any(|o| matches!(o, Op::Read { .. })));
                    if leaf || self.volatile.contains(&owner(step, Facet::Read)) || !self.pins(step).anchor(value) {
                        self.residual(i, None)
                    } else {
                        self.fast.roots.push((*slot, value.store(), owner(step, Facet::Read)));
                        self.set(0, value, step);
                        i + 1
                    }
                }
                Op::Globals => {
                    self.fast.globals = Some((globals.store(), owner(step, Facet::Read)));
                    self.set(0, globals, step);
                    i + 1
                }
                Op::Const(value) => {
                    self.set(0, value.get(), step);
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
                    let residual = Residual { start: step, end: step + 1, at: *depth, value: Some(pin.value.store()) };
                    match settled {
                        PinnedAnswer::ByWords => {}
                        PinnedAnswer::First => self.fast.first.push(residual),
                        PinnedAnswer::Recheck => self.fast.residuals.push(residual),
                    }
                    i + 1
                }
                Op::Methods(methods) => {
                    if !self.pins(step).class_attributes(methods.class.get()) {
                        self.fast.residuals.push(Residual { start: step, end: step + 1, at: 0, value: None });
                    }
                    i + 1
                }
                Op::Record { depth, record } => {
                    self.fast.records[*record as usize] = Some((self.at(*depth)?.value).store());
                    i + 1
                }
            };
        }
        Some(())
    }

    /// Reads a value below a pinned value now.  None if words cannot prove the value.
    fn pin(&mut self, read: &Read, parent: Pin<'a>, op: u32) -> Option<Obj<'a>> {
        let base = parent.value;
        match read {
            Read::InstanceDict(_) => self.pins(op).instance_slot(base, Facet::Read),
            Read::DictItem(key) => self.dict_item(parent, key, op),
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
                let value = name.find(base).ok()??;
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
            Read::Function(part) if base.is_function() => self.function_part(base, *part, op),
            // While the reference is alive and has this address in its slot, no other object has the address.  The slot
            // changes at most once, so it is never volatile.
            Read::Referent if base.is_weakref_exact() => {
                self.pins(op).referent(base);
                Some(base.weakref_target().unwrap_or(Obj::none()))
            }
            Read::MethodSelf(_) if base.is_method() => Some(base.method_self()),
            Read::MethodFunc(_) if base.is_method() => Some(base.method_func()),
            _ => None,
        }
    }

    fn dict_item(&mut self, dict: Pin<'a>, key: &Key, op: u32) -> Option<Obj<'a>> {
        let value = key.find_slowly(dict.value)?;
        if self.pins(dict.op).dict(dict.value) {
            return Some(value);
        }
        if self.volatile.contains(&owner(op, Facet::Read)) {
            return None;
        }
        // The lookup comes before the words of its value.
        let lookup = Lookup {
            after: self.fast.words.len(),
            dict: dict.value.store(),
            key: key.get().store(),
            value: value.store(),
            owner: owner(op, Facet::Read),
        };
        self.fast.lookups.push(lookup);
        if self.pins(op).anchor(value) {
            return Some(value);
        }
        self.fast.lookups.pop();
        None
    }

    fn function_part(&mut self, f: Obj<'a>, part: FunctionPart, op: u32) -> Option<Obj<'a>> {
        if self.volatile.contains(&owner(op, Facet::Read)) {
            return None;
        }
        let (word, value) = match part {
            // These two are fixed for the life of a function.
            FunctionPart::Globals => return Some(f.func_globals()),
            FunctionPart::Closure => return Some(f.func_closure().unwrap_or(Obj::none())),
            FunctionPart::Code => (words::function_code(f), f.func_code()),
            FunctionPart::Defaults => (words::function_defaults(f), f.func_defaults().unwrap_or(Obj::none())),
            FunctionPart::KwDefaults => (words::function_kwdefaults(f), f.func_kwdefaults().unwrap_or(Obj::none())),
        };
        let mut pins = self.pins(op);
        pins.push(word, Facet::Read);
        // Defaults may be the caller's objects, so they must not live longer than their function.
        (value.is_none() || pins.anchor(value)).then_some(value)
    }
}
