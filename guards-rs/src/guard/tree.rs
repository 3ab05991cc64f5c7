//! The check of a whole guard list.  Sources with a common prefix are read once.
//!
//! In: `Guard` records, the sources of a plan's inputs, and the names of the frame's locals in slot order.  Out: `Tree`,
//! a linear program: the tree in depth-first order.  A step reads a value into the stack position of its depth, checks
//! the value there, or records it.  The first step that fails ends the check.  An input source may be unreadable and
//! have no guard: then the reported index is the number of guards.
//!
//! Example: guards on `L['x'].a` and `L['x'].b` become: read x; read x.a; check; read x.b; check.

use super::fast::{Fast, State, Verdict};
use super::methods::{Method, Methods};
use super::source::{Computed, Place, Read, Root};
use super::{Build, Check, GuardWalk, Relational};
use crate::ffi::dict_probe::{self, ChangeSign};
use crate::ffi::object::value_error;
use crate::ffi::sync::GilCell;
use crate::ffi::{Obj, Owned, Res, Stored};
use pyo3::Python;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A step.  `fail` is the guard reported when a path cannot be read: the first guard below the path.
pub enum Op {
    Local {
        slot: usize,
        fail: u32,
    },
    Globals,
    Const(Stored),
    Read {
        read: Read,
        depth: u16,
        fail: u32,
    },
    Check {
        check: Check,
        depth: u16,
        index: u32,
    },
    Record {
        depth: u16,
        record: u16,
    },
    /// Attributes of the class in the step before, which must be the same objects.
    Methods(Methods),
}

/// A relational guard, with the records of its values.
pub struct Relate {
    pub relation: Relational,
    pub records: Vec<u16>,
    pub index: u32,
}

/// The steps of a tree.
pub struct Program {
    pub ops: Vec<Op>,
}

/// The check of a guard list, with its recordings.
pub struct Tree {
    pub(super) program: Program,
    fast: GilCell<State>,
    pub(super) relations: Vec<Relate>,
    max_depth: usize,
    pub(super) n_records: usize,
    /// The record of each input source.
    pub inputs: Vec<u16>,
    /// The objects that the steps borrow.
    pub(super) keep: Vec<Owned>,
}

enum NodeKind {
    Local(usize),
    Globals,
    Const(Stored),
    Read(Read),
}

struct Node {
    kind: NodeKind,
    checks: Vec<(Check, u32)>,
    children: Vec<usize>,
    record: Option<u16>,
    fail: u32,
}

/// Identity of a link: parent, kind and argument.  Plain values count by type and repr, other arguments by address.
#[derive(PartialEq, Eq, Hash)]
struct Key(Option<usize>, String, usize, String);

struct Builder<'a> {
    names: &'a [Owned],
    nodes: Vec<Node>,
    roots: Vec<usize>,
    by_key: HashMap<Key, usize>,
    by_source: HashMap<usize, usize>,
    /// The node of each record.
    recorded: Vec<usize>,
    cx: Build,
}

impl Builder<'_> {
    fn node(&mut self, source: &Owned) -> Res<usize> {
        if let Some(known) = self.by_source.get(&source.get().id()) {
            return Ok(*known);
        }
        let (kind, base, arg) = (source.attr(c"kind")?, source.attr(c"base")?, source.attr(c"arg")?);
        let parent = if base.get().is_none() { None } else { Some(self.node(&base)?) };
        let kind = kind.get().as_str()?.to_owned();
        let text = if arg.get().is_plain_key() {
            (arg.get().class().id(), arg.get().own().repr())
        } else {
            (arg.get().id(), String::new())
        };
        let index = if parent.is_none() && kind == "class" {
            let reference = self.link(None, "const", text, &arg)?;
            self.link(Some(reference), "referent", (0, String::new()), &Owned::none())?
        } else {
            self.link(parent, &kind, text, &arg)?
        };
        self.cx.keep(source.get());
        self.by_source.insert(source.get().id(), index);
        Ok(index)
    }

    /// The node of a link.  Equal links share one node.
    fn link(&mut self, parent: Option<usize>, kind: &str, text: (usize, String), arg: &Owned) -> Res<usize> {
        let key = Key(parent, kind.to_owned(), text.0, text.1);
        match self.by_key.get(&key) {
            Some(known) => Ok(*known),
            None => self.add(parent, key, arg),
        }
    }

    fn add(&mut self, parent: Option<usize>, key: Key, arg: &Owned) -> Res<usize> {
        let kind = match (parent, key.1.as_str()) {
            (None, "local") => NodeKind::Local(self.slot(arg)?),
            (None, "globals") => NodeKind::Globals,
            (None, "const") => NodeKind::Const(self.cx.keep(arg.get())),
            (None, other) => {
                return Err(value_error(&format!("unknown root {other:?}; known: local, globals, const, class")))
            }
            (Some(_), other) => NodeKind::Read(self.read(other, arg)?),
        };
        self.cx.keep(arg.get()); // the key has its address
        let index = self.nodes.len();
        self.nodes.push(Node { kind, checks: vec![], children: vec![], record: None, fail: u32::MAX });
        match parent {
            Some(p) => self.nodes[p].children.push(index),
            None => self.roots.push(index),
        }
        self.by_key.insert(key, index);
        Ok(index)
    }

    fn read(&mut self, kind: &str, arg: &Owned) -> Res<Read> {
        if kind != "computed" {
            return Read::build(kind, arg.get(), &mut self.cx);
        }
        let function = self.cx.adopt(arg.attr(c"function")?);
        let places = arg.attr(c"places")?.to_tuple()?;
        let places = places.get().tuple_items().map(|source| self.place(&source.own())).collect::<Res<_>>()?;
        Ok(Read::Computed(Box::new(Computed { function, places })))
    }

    /// A path from a root, which each check walks again.
    fn place(&mut self, source: &Owned) -> Res<Place> {
        let (kind, base, arg) = (source.attr(c"kind")?, source.attr(c"base")?, source.attr(c"arg")?);
        let kind = kind.get().as_str()?;
        if !base.get().is_none() {
            let mut place = self.place(&base)?;
            place.reads.push(self.read(kind, &arg)?);
            return Ok(place);
        }
        let root = match kind {
            "local" => Root::Local(self.slot(&arg)?),
            "globals" => Root::Globals,
            _ => Root::Const(self.cx.keep(arg.get())),
        };
        let reads = if kind == "class" { vec![Read::Referent] } else { vec![] };
        Ok(Place { root, reads })
    }

    fn slot(&self, name: &Owned) -> Res<usize> {
        for (i, known) in self.names.iter().enumerate() {
            if known == name || known.equals(name.get())? {
                return Ok(i);
            }
        }
        let names: Vec<_> = self.names.iter().map(|n| n.repr()).collect();
        Err(value_error(&format!("a guard names the local {}, but the frame has {}", name.repr(), names.join(", "))))
    }

    fn record(&mut self, source: &Owned) -> Res<u16> {
        let node = self.node(source)?;
        if let Some(record) = self.nodes[node].record {
            return Ok(record);
        }
        let record = u16::try_from(self.recorded.len()).map_err(|_| value_error("more than 65536 recorded sources"))?;
        self.recorded.push(node);
        self.nodes[node].record = Some(record);
        Ok(record)
    }

    /// Sets `fail` of every node: the smallest guard index below the node, or `none`.
    fn settle(&mut self, none: u32) {
        for i in (0..self.nodes.len()).rev() {
            // Children come after their parents.
            let own = self.nodes[i].checks.iter().map(|c| c.1).min().unwrap_or(u32::MAX);
            let below = self.nodes[i].children.iter().map(|c| self.nodes[*c].fail).min().unwrap_or(u32::MAX);
            let fail = self.nodes[i].fail.min(own).min(below);
            self.nodes[i].fail = fail;
        }
        for node in &mut self.nodes {
            node.fail = node.fail.min(none);
            node.checks.sort_by_key(|(check, index)| (check.cost(), *index));
        }
    }
}

/// Takes the nodes below a class that only check attributes of the class.
fn take_methods(class: Obj, children: &[usize], nodes: &mut [Option<Node>]) -> Option<Methods> {
    let is_plain = |node: &Node| {
        matches!(node.kind, NodeKind::Read(Read::MroLookup(_)))
            && node.children.is_empty()
            && node.record.is_none()
            && node.checks.iter().all(|(check, _)| matches!(check, Check::IdIs(_)))
    };
    let mut found = Vec::new();
    for child in children {
        let Some(Node { kind: NodeKind::Read(Read::MroLookup(name)), checks, fail, .. }) =
            nodes[*child].take_if(|node| is_plain(node))
        else {
            continue;
        };
        let checks = checks.into_iter().filter_map(|(check, index)| match check {
            Check::IdIs(check) => Some((check, index)),
            _ => None,
        });
        found.push(Method { name, checks: checks.collect(), fail });
    }
    (!found.is_empty()).then(|| Methods::new(class, found))
}

/// The steps of `nodes` in depth-first order.
fn flatten(nodes: Vec<Node>, roots: Vec<usize>) -> (Vec<Op>, usize) {
    let mut nodes: Vec<Option<Node>> = nodes.into_iter().map(Some).collect();
    let (mut ops, mut max_depth) = (Vec::new(), 0);
    let mut pending: Vec<(usize, u16)> = roots.into_iter().rev().map(|r| (r, 0)).collect();
    while let Some((index, depth)) = pending.pop() {
        let Some(node) = nodes[index].take() else { continue };
        max_depth = max_depth.max(depth as usize);
        let methods = match node.kind {
            NodeKind::Const(class) if class.get().is_type() => take_methods(class.get(), &node.children, &mut nodes),
            _ => None,
        };
        ops.push(match node.kind {
            NodeKind::Local(slot) => Op::Local { slot, fail: node.fail },
            NodeKind::Globals => Op::Globals,
            NodeKind::Const(value) => Op::Const(value),
            NodeKind::Read(read) => Op::Read { read, depth, fail: node.fail },
        });
        if let Some(record) = node.record {
            ops.push(Op::Record { depth, record });
        }
        ops.extend(node.checks.into_iter().map(|(check, index)| Op::Check { check, depth, index }));
        ops.extend(methods.map(Op::Methods));
        pending.extend(node.children.into_iter().rev().map(|c| (c, depth + 1)));
    }
    (ops, max_depth)
}

impl Tree {
    /// `guards` is a tuple of `Guard` records; `inputs` are `Source` records.
    pub fn build(guards: Obj, inputs: &[Obj], names: &[Owned]) -> Res<Tree> {
        let mut b = Builder {
            names,
            nodes: vec![],
            roots: vec![],
            by_key: HashMap::new(),
            by_source: HashMap::new(),
            recorded: vec![],
            cx: Build::default(),
        };
        let mut relations = Vec::new();
        let mut states = Vec::new();
        for (index, guard) in guards.tuple_items().map(Obj::own).enumerate() {
            let index = index as u32;
            let (kind, source, arg) = (guard.attr(c"kind")?, guard.attr(c"source")?, guard.attr(c"arg")?);
            let kind = kind.get().as_str()?;
            if let Some(relation) = Relational::build(kind, arg.get(), &mut b.cx).transpose()? {
                let mut records = vec![b.record(&source)?];
                for other in guard.attr(c"others")?.to_tuple()?.get().tuple_items() {
                    records.push(b.record(&other.own())?);
                }
                for record in &records {
                    let node = b.recorded[*record as usize];
                    b.nodes[node].fail = b.nodes[node].fail.min(index);
                }
                relations.push(Relate { relation, records, index });
            } else if kind == "global_state" {
                states.push((Check::build(kind, arg.get(), &mut b.cx)?, index));
            } else {
                let node = b.node(&source)?;
                let check = Check::build(kind, arg.get(), &mut b.cx)?;
                b.nodes[node].checks.push((check, index));
            }
        }
        let inputs = inputs.iter().map(|source| b.record(&source.own())).collect::<Res<Vec<u16>>>()?;
        let n = guards.tuple_len() as u32;
        b.settle(n);
        let Builder { nodes, roots, recorded, cx, .. } = b;
        let (body, max_depth) = flatten(nodes, roots);
        let mut ops = Vec::with_capacity(body.len() + states.len() + 1);
        if !states.is_empty() {
            ops.push(Op::Const(Obj::none().store()));
        }
        ops.extend(states.into_iter().map(|(check, index)| Op::Check { check, depth: 0, index }));
        ops.extend(body);
        let fast = GilCell::new(State::new(ops.iter().any(reads_dict) && fast_guards_supported(guards.py())));
        let program = Program { ops };
        Ok(Tree { program, fast, relations, max_depth, n_records: recorded.len(), inputs, keep: cx.keep })
    }

    /// Ok, or the index of a guard that does not hold.  Recorded values stay in `walk`.
    #[inline]
    pub fn check(&self, locals: &[Option<Stored>], globals: Obj, walk: &mut GuardWalk) -> Result<(), u32> {
        self.make_room(walk);
        let py = globals.py();
        let (current, record) = self.fast.read(py, |f| (f.current.clone(), f.wants_recording()));
        if !FAST_GUARDS.load(Ordering::Relaxed) {
            return self.check_all(locals, globals, walk);
        }
        if let Some(fast) = current {
            return match fast.check(&self.program, locals, globals, walk) {
                Verdict::Holds => {
                    walk.settle();
                    fast.relate(&self.relations, walk)
                }
                Verdict::Fails(index) => Err(index),
                Verdict::Changed(owner) => {
                    walk.reset();
                    self.check_all(locals, globals, walk)?;
                    let old = self.fast.with(py, |f| f.give_up(&fast, owner));
                    walk.retire(old);
                    Ok(())
                }
            };
        }
        if record {
            return self.check_and_record(locals, globals, walk);
        }
        self.check_all(locals, globals, walk)
    }

    #[inline]
    fn make_room(&self, walk: &mut GuardWalk) {
        walk.stack.resize(self.max_depth + 1, None);
    }

    /// A walk for running single steps.
    pub(super) fn walk(&self) -> GuardWalk {
        let mut walk = GuardWalk::default();
        self.make_room(&mut walk);
        walk.records.resize(self.n_records, None);
        walk
    }

    /// Evaluates every guard.
    pub(super) fn check_all(&self, locals: &[Option<Stored>], globals: Obj, walk: &mut GuardWalk) -> Result<(), u32> {
        walk.records.resize(self.n_records, None);
        self.program.run(0, self.program.ops.len(), locals, globals, walk)?;
        walk.settle();
        self.relate(walk)
    }

    /// Records before the check and compares after it, so that the recording matches the check.
    #[inline(never)]
    fn check_and_record(&self, locals: &[Option<Stored>], globals: Obj, walk: &mut GuardWalk) -> Result<(), u32> {
        let py = globals.py();
        let volatile = self.fast.read(py, |f| f.volatile.clone());
        let fast = Fast::record(self, locals, globals, &volatile);
        self.check_all(locals, globals, walk)?;
        let fast = fast.map(Rc::new);
        if let Some(fast) = fast.as_ref().filter(|f| f.unchanged(locals, globals)) {
            let old = self.fast.with(py, |f| f.store(fast.clone()));
            walk.retire(old);
        }
        walk.retire(fast);
        Ok(())
    }

    /// The relational guards.
    #[inline]
    fn relate(&self, walk: &GuardWalk) -> Result<(), u32> {
        for relate in &self.relations {
            let mut values: SmallVec<[Obj; 16]> = SmallVec::new();
            for record in &relate.records {
                if let Some(value) = &walk.records[*record as usize] {
                    values.push(value.get());
                }
            }
            if !relate.relation.holds(&values) {
                return Err(relate.index);
            }
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.program.ops.len()
    }

    /// The number of steps that the next check evaluates, if nothing has changed.
    pub fn evaluated(&self, py: Python<'_>) -> usize {
        self.fast.read(py, |f| f.current.as_ref().map_or(self.len(), |fast| fast.evaluated()))
    }

    /// Whether the tree has a recording for the fast path.
    pub fn is_fast(&self, py: Python<'_>) -> bool {
        self.fast.read(py, |f| f.current.is_some())
    }

    /// Shows the objects that the tree holds to the garbage collector.
    pub fn visit<E>(&self, py: Python<'_>, f: &mut dyn FnMut(Obj) -> Result<(), E>) -> Result<(), E> {
        self.keep.iter().try_for_each(|o| f(o.get()))?;
        let fast = self.fast.try_read(py, |s| s.current.clone()).flatten();
        fast.map_or(Ok(()), |fast| fast.held.iter().try_for_each(|o| f(o.get())))
    }
}

impl Program {
    /// The position after the subtree that starts at the read `i`.
    pub fn subtree_end(&self, i: usize) -> usize {
        let depth = |op: &Op| match op {
            Op::Read { depth, .. } => Some(*depth),
            Op::Local { .. } | Op::Globals | Op::Const(_) => Some(0),
            _ => None,
        };
        let own = self.ops.get(i).and_then(depth).unwrap_or(0);
        let later = self.ops.iter().skip(i + 1).position(|op| depth(op).is_some_and(|d| d <= own));
        later.map_or(self.ops.len(), |n| i + 1 + n)
    }

    /// Evaluates the steps `start..end`.  The stack must hold the values of the steps before `start`.
    #[inline]
    pub fn run(
        &self,
        start: usize,
        end: usize,
        locals: &[Option<Stored>],
        globals: Obj,
        walk: &mut GuardWalk,
    ) -> Result<(), u32> {
        for op in &self.ops[start..end] {
            match op {
                Op::Check { check, depth, index } => {
                    let Some(value) = walk.stack[*depth as usize] else { return Err(*index) };
                    let asked = |_| check.ask(&walk.hold(*depth as usize, value.get(), locals));
                    if !check.holds(value.get()).unwrap_or_else(asked) {
                        return Err(*index);
                    }
                }
                Op::Read { read, depth, fail } => {
                    let Some(value) = walk.stack[*depth as usize - 1] else { return Err(*fail) };
                    let value = value.get();
                    let next = read.read(value).map(|next| next.map(Obj::store)).unwrap_or_else(|_| {
                        if let Some(made) = read.fresh(value) {
                            return Some(walk.keep(made));
                        }
                        let held = walk.hold(*depth as usize - 1, value, locals);
                        let asked = match read {
                            Read::Computed(computed) => computed.ask(&held, locals, globals),
                            _ => read.ask(&held),
                        };
                        asked.map(|owned| walk.keep(owned))
                    });
                    let Some(next) = next else { return Err(*fail) };
                    walk.stack[*depth as usize] = Some(next);
                }
                Op::Local { slot, fail } => match locals.get(*slot).copied().flatten() {
                    Some(value) => walk.stack[0] = Some(value),
                    None => return Err(*fail),
                },
                Op::Record { depth, record } => walk.records[*record as usize] = walk.stack[*depth as usize],
                Op::Methods(methods) if methods.unchanged() => {}
                Op::Methods(methods) => {
                    let asked = |_| methods.ask(&walk.hold(0, methods.class.get(), locals));
                    methods.hold().unwrap_or_else(asked)?;
                }
                Op::Globals => walk.stack[0] = Some(globals.store()),
                Op::Const(value) => walk.stack[0] = Some(*value),
            }
        }
        Ok(())
    }
}

fn reads_dict(op: &Op) -> bool {
    matches!(op, Op::Read { read: Read::InstanceDict(_) | Read::DictItem(_), .. })
}

static FAST_GUARDS: AtomicBool = AtomicBool::new(true);

/// Turns the fast path on or off, for every tree.
pub fn set_fast_guards(on: bool) {
    FAST_GUARDS.store(on, Ordering::Relaxed);
}

/// Whether dicts of this interpreter report their changes; probed once.
pub fn fast_guards_supported(py: Python<'_>) -> bool {
    dict_probe::sign(py) != ChangeSign::Nothing
}
