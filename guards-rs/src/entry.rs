//! `Entry`: guards, and the target that runs when they hold.
//!
//! In: `Entry(guards, target, kind, inputs=..., outputs=...)` from the compiler.  Out: a native check and a native run.
//! The guard tree is built when a CompiledFunction stores the entry, because slots are positions in its locals.

use crate::backend_call::{holds_arguments, learn_calls, outputs_of, wrong_outputs, BackendCall};
use crate::ffi::object::{pending, runtime_error, type_error, value_error, Handle, References};
use crate::ffi::plan_call::ignores;
use crate::ffi::sync::GilCell;
use crate::ffi::{collector, stack, visit_obj, Obj, Owned, Raised, Res, Stored};
use crate::guard::profile::Profile;
use crate::guard::tree::Tree;
use crate::guard::GuardWalk;
use crate::hook;
use crate::plan::Plan;
use crate::signature::Locals;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use smallvec::SmallVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A generated Python function over the locals.
    Function,
    /// A native plan (or a callable on the graph's inputs) and a template of the result.
    Plan,
    /// The original function, under these guards.
    Eager,
}

const KINDS: &[(&str, Kind)] = &[("function", Kind::Function), ("plan", Kind::Plan), ("eager", Kind::Eager)];

/// How to build the result from a plan's outputs.  `Bound::keep` owns the constants and keys (rule *stored*).
enum Template {
    Graph(usize),
    Const(Stored),
    /// The value at a source.  The check has read it before the plan ran.
    Source(u16),
    Tuple(Vec<Template>),
    List(Vec<Template>),
    Dict(Vec<(Stored, Template)>),
}

/// The parts of an entry that depend on a locals layout.
pub struct Bound {
    tree: Tree,
    names: Vec<Owned>,
    n_inputs: usize,
    /// Number of graph outputs that the template uses; the graph has as many.
    n_outputs: usize,
    template: Option<Template>,
    keep: Vec<Owned>,
    /// Whether the target takes the closure's cells as its own free variables, not as arguments.
    takes_closure: bool,
    n_params: usize,
}

/// The state of an entry.
pub struct Contents {
    guards: Owned,
    target: Owned,
    /// The target, if it is a BackendCall.
    call: Option<Handle<BackendCall>>,
    /// `co_consts` of a generated function: the compiled graph, resume functions, and other objects of the program.
    constants: Option<Owned>,
    inputs: Owned,
    outputs: Owned,
    kind: Kind,
    /// The frame hook for frames that the target calls.
    frame_hook: Option<Handle<hook::FrameHook>>,
    /// A callable that is called with each error of a run.
    failed: Option<Owned>,
    /// Id and name of the compile, for profilers.
    title: Option<String>,
    bound: OnceCell<Bound>,
    /// The last closure, and the function built from the target's code with that closure.
    with_closure: RefCell<Option<(Owned, Owned)>>,
    hits: Cell<u64>,
}

/// Guards and target of one compilation.  `kind` is "function", "plan" or "eager"; see ARCHITECTURE.md.
#[pyclass(frozen, weakref, module = "pycompiler._native")]
pub struct Entry {
    /// None after the garbage collector cleared the entry.
    contents: GilCell<Option<Rc<Contents>>>,
}

pub type EntryRef = Handle<Entry>;

#[pymethods]
impl Entry {
    #[new]
    #[pyo3(signature = (guards, target, kind, outputs=None, inputs=None, *, frame_hook=None, failed=None, title=None))]
    #[allow(clippy::too_many_arguments)] // of Python, by keyword
    fn new(
        guards: &PyBound,
        target: &PyBound,
        kind: &str,
        outputs: Option<&PyBound>,
        inputs: Option<&PyBound>,
        frame_hook: Option<&pyo3::Bound<'_, hook::FrameHook>>,
        failed: Option<&PyBound>,
        title: Option<String>,
    ) -> PyResult<Self> {
        let Some((_, kind)) = KINDS.iter().find(|(name, _)| *name == kind) else {
            return Err(value_error(&format!("unknown entry kind {kind:?}; known: function, plan, eager")).into());
        };
        let target = Obj::of(target).own();
        if *kind == Kind::Function && !target.get().is_function() {
            return Err(type_error(&format!(
                "an entry of kind 'function' needs a Python function, not {}",
                target.repr()
            ))
            .into());
        }
        if *kind == Kind::Plan && !target.get().is_callable() {
            return Err(type_error(&format!("an entry of kind 'plan' needs a callable, not {}", target.repr())).into());
        }
        let inputs = match inputs {
            Some(inputs) => Obj::of(inputs).own().to_tuple()?,
            None => Owned::tuple(&[])?,
        };
        let contents = Contents {
            guards: Obj::of(guards).own().to_tuple()?,
            call: Handle::downcast(target.get()),
            constants: if *kind == Kind::Function {
                Some(target.get().func_code().own().attr(c"co_consts")?.to_tuple()?)
            } else {
                None
            },
            target,
            inputs,
            outputs: outputs.map_or_else(Owned::none, |o| Obj::of(o).own()),
            kind: *kind,
            frame_hook: frame_hook.and_then(|h| Handle::downcast(Obj::of(h))),
            failed: failed.map(|f| Obj::of(f).own()),
            title,
            bound: OnceCell::new(),
            with_closure: RefCell::new(None),
            hits: Cell::new(0),
        };
        Ok(Entry { contents: GilCell::new(Some(Rc::new(contents))) })
    }

    #[getter]
    fn guards(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.live(py)?.guards.clone().into_py(py))
    }
    #[getter]
    fn target(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.live(py)?.target.clone().into_py(py))
    }
    #[getter]
    fn inputs(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.live(py)?.inputs.clone().into_py(py))
    }
    #[getter]
    fn outputs(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.live(py)?.outputs.clone().into_py(py))
    }
    #[getter]
    fn kind(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Owned::str(self.live(py)?.kind_name())?.into_py(py))
    }
    #[getter]
    fn frame_hook(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.live(py)?.frame_hook.is_some())
    }
    /// Number of calls that this entry answered.
    #[getter]
    fn hits(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Owned::int(self.live(py)?.hits.get() as i64)?.into_py(py))
    }

    /// Gives this entry the contents of `other` from the next call on; the hit count continues.  Used when a first,
    /// eager entry gets compiled.  Running calls keep the old contents.
    #[pyo3(name = "become")]
    fn become_other(&self, py: Python<'_>, other: &Entry) -> PyResult<()> {
        let (old, new) = (self.live(py)?, other.live(py)?);
        if let Some(bound) = old.bound.get() {
            let freevars = Owned::tuple_from(bound.names[bound.n_params..].to_vec())?;
            new.bind(&bound.names, freevars.get(), bound.n_params)?;
        }
        new.hits.set(old.hits.get());
        drop(self.contents.replace(py, Some(new)));
        Ok(())
    }

    /// Ends the entry: no later call finds it, and no limit counts it.
    fn end(&self, py: Python<'_>) {
        drop(self.contents.replace(py, None));
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let contents = self.live(py)?;
        let (kind, guards, hits) = (contents.kind_name(), contents.guards.get().tuple_len(), contents.hits.get());
        Ok(Owned::str(&format!("<Entry kind={kind} guards={guards} hits={hits}>"))?.into_py(py))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A running call also owns the contents, which the garbage collector cannot know.  So they are not visited, and
        // stay alive.
        let ours = |c: &Option<Rc<Contents>>| match c {
            Some(c) if Rc::strong_count(c) == 1 => c.traverse(&visit),
            _ => Ok(()),
        };
        self.contents.try_read(collector(&visit), ours).unwrap_or(Ok(()))
    }

    fn __clear__(&self, py: Python<'_>) {
        drop(self.contents.replace(py, None));
    }
}

type PyBound<'py> = pyo3::Bound<'py, PyAny>;

impl Entry {
    pub fn is_live(&self, py: Python<'_>) -> bool {
        self.contents.read(py, |c| c.is_some())
    }

    /// The contents.  The result keeps them alive, whatever happens to the entry meanwhile.
    #[inline]
    pub fn contents(&self, py: Python<'_>) -> Option<Rc<Contents>> {
        self.contents.read(py, |c| c.clone())
    }

    fn live(&self, py: Python<'_>) -> Res<Rc<Contents>> {
        self.contents(py).ok_or_else(|| runtime_error("this Entry was cleared by the garbage collector"))
    }

    /// Builds the tree for locals with these names.  Does nothing if it was built for the same names.
    pub fn bind(&self, names: &[Owned], freevars: Obj, n_params: usize) -> Res<()> {
        let py = freevars.py();
        loop {
            let contents = self.live(py)?;
            contents.bind(names, freevars, n_params)?;
            // Binding runs Python code, so another thread may have replaced the contents meanwhile.
            if Rc::ptr_eq(&contents, &self.live(py)?) {
                return Ok(());
            }
        }
    }
}

impl Contents {
    /// Id and name of the entry's compile, or the function's name.
    pub fn title<'a>(&'a self, function: &'a str) -> &'a str {
        self.title.as_deref().unwrap_or(function)
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for o in [&self.guards, &self.target, &self.inputs, &self.outputs] {
            visit_obj(visit, o.get())?;
        }
        if let Some(hook) = &self.frame_hook {
            visit_obj(visit, hook.obj())?;
        }
        if let Some(failed) = &self.failed {
            visit_obj(visit, failed.get())?;
        }
        if let Some(call) = &self.call {
            visit_obj(visit, call.obj())?;
        }
        if let Some(bound) = self.bound.get() {
            for o in bound.keep.iter().chain(&bound.names) {
                visit_obj(visit, o.get())?;
            }
            bound.tree.visit(collector(visit), &mut |o| visit_obj(visit, o))?;
        }
        let mut functions = vec![self.target.get()];
        let cached = self.with_closure.try_borrow();
        if let Some((closure, function)) = cached.as_ref().ok().and_then(|c| c.as_ref()) {
            visit_obj(visit, closure.get())?;
            visit_obj(visit, function.get())?;
            functions.push(function.get());
        }
        if let Some(constants) = &self.constants {
            visit_obj(visit, constants.get())?;
            // The garbage collector does not look into code objects.  So the code object's reference to its constants
            // is visited here, if no other holder can have the code object.  Otherwise cycles through resume functions
            // would never be freed.
            let code = self.target.get().func_code();
            if functions.iter().all(|f| f.refcount() == 1) && code.refcount() == functions.len() as isize {
                visit_obj(visit, constants.get())?;
            }
        }
        Ok(())
    }

    fn bind(&self, names: &[Owned], freevars: Obj, n_params: usize) -> Res<()> {
        if let Some(bound) = self.bound.get() {
            let same = bound.names.len() == names.len() && bound.names.iter().zip(names).all(|(a, b)| a == b);
            return if same {
                Ok(())
            } else {
                Err(value_error("this Entry is in use by a function with other locals"))
            };
        }
        let bound = self.build(names, freevars, n_params)?;
        // Building runs Python code.  If that code has bound the entry meanwhile, its result is used.
        drop(self.bound.set(bound));
        Ok(())
    }

    fn build(&self, names: &[Owned], freevars: Obj, n_params: usize) -> Res<Bound> {
        let mut sources: Vec<Owned> = self.inputs.get().tuple_items().map(Obj::own).collect();
        let n_inputs = sources.len();
        let mut keep = Vec::new();
        for (i, source) in sources.iter_mut().enumerate() {
            if let Some(tensor) = instead_of_size(&self.target, i, source)? {
                *source = tensor;
            }
        }
        let template = match self.outputs.get().is_none() {
            true => None,
            false => Some(Template::parse(&self.outputs, &mut sources, &mut keep)?),
        };
        learn_calls(&self.target, self.call.as_ref())?;
        let tree = Tree::build(self.guards.get(), &sources.iter().map(Owned::get).collect::<Vec<_>>(), names)?;
        let template = template.map(|t| t.resolve(&tree.inputs));
        let takes_closure = self.kind == Kind::Function && freevars.tuple_len() > 0 && {
            let own = self.target.get().func_code().own().attr(c"co_freevars")?;
            own.equals(freevars)?
        };
        if self.kind == Kind::Function {
            let code = self.target.get().func_code().own();
            hook::never(code.get());
            let want = if takes_closure { n_params } else { names.len() };
            let have = code.attr(c"co_argcount")?.as_i64()? as usize;
            if have != want {
                return Err(value_error(&format!(
                    "the target {} takes {have} positional parameters, but the frame has {want} locals to pass",
                    self.target.repr()
                )));
            }
        }
        let n_outputs = template.as_ref().map_or(0, Template::n_outputs);
        Ok(Bound { tree, names: names.to_vec(), n_inputs, n_outputs, template, keep, takes_closure, n_params })
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    fn kind_name(&self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(name, _)| name)
    }

    /// Calls `failed` on the pending error.  Another error may be pending afterwards.  True if the error must be raised
    /// where the frame continues.
    #[cold]
    pub fn ask_failed(&self) -> bool {
        let Some(ask) = &self.failed else { return false };
        pending(|error| ask.call(&[error], None).map(|answer| !answer.get().is_none()))
    }

    pub fn guards(&self) -> Obj<'_> {
        self.guards.get()
    }

    pub fn hit(&self) {
        self.hits.set(self.hits.get() + 1);
    }

    /// Ok, or the index of a guard that fails.  An unbound entry fails as a whole.
    #[inline]
    pub fn check(&self, locals: &[Option<Stored>], globals: Obj, walk: &mut GuardWalk) -> Result<(), u32> {
        match self.bound.get() {
            Some(bound) => bound.tree.check(locals, globals, walk),
            None => Err(u32::MAX),
        }
    }

    /// Costs of the guards in nanoseconds (see `guard::profile`).  The guards must hold for these locals.
    pub fn profile(&self, locals: &[Option<Stored>], globals: Obj) -> Option<Profile> {
        self.bound.get()?.tree.profile(self.guards.get().tuple_len(), locals, globals)
    }

    /// Runs a checked entry of kind function or plan.  The result may be a TailCall.  A closure that is not `lasting`
    /// is not stored.
    #[inline]
    pub fn run(&self, locals: &Locals, closure: Option<Obj>, lasting: bool, walk: &GuardWalk) -> Res<Owned> {
        let bound = self.bound.get().ok_or_else(|| runtime_error("an Entry ran before it was bound"))?;
        match self.kind {
            Kind::Function => self.run_function(bound, locals, closure, lasting),
            _ => self.run_plan(bound, walk),
        }
    }

    fn run_function(&self, bound: &Bound, locals: &Locals, closure: Option<Obj>, lasting: bool) -> Res<Owned> {
        stack::check()?;
        let source = self.frame_hook.as_ref().and_then(|h| h.source(self.target.get().py()));
        let _entered = source.map(|source| hook::ContextScope::new(self.target.get().py(), source)).transpose()?;
        let args: SmallVec<[Obj; 16]> = locals.slots.iter().flatten().map(Stored::get).collect();
        let Some(closure) = closure.filter(|_| bound.takes_closure) else {
            return self.target.call(&args, None);
        };
        let function = self.function_with(closure, lasting)?;
        function.call(&args[..args.len() - closure.tuple_len()], None)
    }

    fn function_with(&self, closure: Obj, lasting: bool) -> Res<Owned> {
        if let Some((known, function)) = &*self.with_closure.borrow() {
            if known.get() == closure {
                return Ok(function.clone());
            }
        }
        let made = Owned::function(self.target.get().func_code(), self.target.get().func_globals(), closure)?;
        if lasting {
            let old = self.with_closure.replace(Some((closure.own(), made.clone())));
            drop(old);
        }
        Ok(made)
    }

    fn run_plan(&self, bound: &Bound, walk: &GuardWalk) -> Res<Owned> {
        let inputs = walk.inputs(&bound.tree.inputs);
        let (of_graph, of_template) = inputs.split_at(bound.n_inputs);
        // Held: while a kernel runs without the GIL, another thread may drop the objects from which the inputs were
        // read.
        let _template = References::new(of_template);
        let _graph = (!holds_arguments(&self.target, self.call.as_ref())).then(|| References::new(of_graph));
        let graph = outputs_of(&self.target, self.call.as_ref(), of_graph, bound.n_outputs)?;
        match &bound.template {
            None => Owned::tuple_from(graph.into_vec()),
            Some(template) if graph.len() == bound.n_outputs => template.build(&graph, walk),
            Some(_) => Err(wrong_outputs(&self.target, &format!("{} outputs", graph.len()), bound.n_outputs)),
        }
    }
}

/// The source of a tensor, for an input that is a size or stride which the plan reads from that tensor itself.
fn instead_of_size(target: &Owned, input: usize, source: &Owned) -> Res<Option<Owned>> {
    let is_number = matches!(source.attr(c"kind")?.get().as_str()?, "size" | "stride");
    if is_number && ignores::<Plan>(target, input) {
        return Ok(Some(source.attr(c"base")?));
    }
    Ok(None)
}

impl Template {
    /// The largest graph output used, plus one.
    fn n_outputs(&self) -> usize {
        match self {
            Template::Graph(i) => i + 1,
            Template::Const(_) | Template::Source(_) => 0,
            Template::Tuple(parts) | Template::List(parts) => parts.iter().map(Template::n_outputs).max().unwrap_or(0),
            Template::Dict(parts) => parts.iter().map(|(_, t)| t.n_outputs()).max().unwrap_or(0),
        }
    }

    fn parse(spec: &Owned, sources: &mut Vec<Owned>, keep: &mut Vec<Owned>) -> Res<Template> {
        let bad = || value_error(&format!("bad output template {}: expected (kind, value)", spec.repr()));
        if !spec.get().is_tuple() || spec.get().tuple_len() != 2 {
            return Err(bad());
        }
        let (kind, value) = (spec.get().tuple_item(0), spec.get().tuple_item(1).own());
        keep.push(value.clone());
        let kind = kind.as_str()?;
        let mut parts = |value: &Owned, keep: &mut Vec<Owned>| -> Res<Vec<Template>> {
            let items = value.to_tuple()?;
            keep.push(items.clone());
            items.get().tuple_items().map(|item| Template::parse(&item.own(), sources, keep)).collect()
        };
        match kind {
            "tuple" => parts(&value, keep).map(Template::Tuple),
            "list" => parts(&value, keep).map(Template::List),
            "dict" => {
                let items = value.to_tuple()?;
                keep.push(items.clone());
                let mut out = Vec::new();
                for pair in items.get().tuple_items() {
                    let pair = pair.own().to_tuple()?;
                    if pair.get().tuple_len() != 2 {
                        return Err(bad());
                    }
                    keep.push(pair.clone());
                    out.push((
                        pair.get().tuple_item(0).store(),
                        Template::parse(&pair.get().tuple_item(1).own(), sources, keep)?,
                    ));
                }
                Ok(Template::Dict(out))
            }
            "graph" => usize::try_from(value.as_i64()?).map(Template::Graph).map_err(|_| bad()),
            "const" => Ok(Template::Const(value.get().store())),
            "source" => {
                let at = u16::try_from(sources.len()).map_err(|_| bad())?;
                sources.push(value);
                Ok(Template::Source(at))
            }
            _ => Err(value_error(&format!(
                "unknown output kind {kind:?}; known: tuple, list, dict, graph, const, source"
            ))),
        }
    }

    /// Replaces positions among the sources by the records of their values.
    fn resolve(self, records: &[u16]) -> Template {
        let all = |parts: Vec<Template>| parts.into_iter().map(|t| t.resolve(records)).collect();
        match self {
            Template::Source(i) => Template::Source(records[i as usize]),
            Template::Tuple(parts) => Template::Tuple(all(parts)),
            Template::List(parts) => Template::List(all(parts)),
            Template::Dict(parts) => Template::Dict(parts.into_iter().map(|(k, t)| (k, t.resolve(records))).collect()),
            leaf => leaf,
        }
    }

    fn build(&self, graph: &[Owned], walk: &GuardWalk) -> Res<Owned> {
        let all = |parts: &[Template]| parts.iter().map(|t| t.build(graph, walk)).collect::<Res<Vec<Owned>>>();
        match self {
            Template::Graph(i) => graph.get(*i).cloned().ok_or_else(|| too_few(*i, graph.len())),
            Template::Const(value) => Ok(value.get().own()),
            Template::Source(record) => {
                walk.record(*record).map(|v| v.own()).ok_or_else(|| runtime_error("an output's source has no value"))
            }
            Template::Tuple(parts) => Owned::tuple_from(all(parts)?),
            Template::List(parts) => Owned::list_from(all(parts)?),
            Template::Dict(parts) => {
                let dict = Owned::dict()?;
                for (key, part) in parts {
                    dict.dict_set(key.get(), part.build(graph, walk)?.get())?;
                }
                Ok(dict)
            }
        }
    }
}

fn too_few(i: usize, n: usize) -> Raised {
    runtime_error(&format!("the output template asks for graph output {i}, but the graph returned {n} values"))
}
