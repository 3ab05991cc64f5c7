//! A call from start to end: bind, look up, run; after a miss decide, compile, store.
//!
//! In: a call of a CompiledFunction (or a frame caught by the hook).  Out: its result.  `ffi::callable` creates the
//! Python type, `methods.rs` has its methods.

use crate::cache::{CodeCache, Counters, Reasons};
use crate::entry::{Contents, Entry, EntryRef, Kind};
use crate::ffi::frame::FrameAction;
use crate::ffi::object::{caught, is_error, raise, runtime_error, type_error};
use crate::ffi::sync::{Acquisition, CompileLock};
use crate::ffi::tailcall::CallMark;
use crate::ffi::{callable, stack, tailcall, Obj, Owned, Raised, Res};
use crate::guard::GuardWalk;
use crate::hook::HookExemption;
use crate::hook_state;
use crate::registered_object;
use crate::signature::{Locals, Mismatch};
use crate::watch::{self, CallObserver};
use pyo3::Python;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Compile on a miss.
    Compile,
    /// Use compiled entries; after a miss run eagerly (frozen).
    Run,
    /// Run the original function.
    Eager,
    /// Raise on a miss.
    Error,
}

pub const MODES: &[(&str, Mode)] =
    &[("compile", Mode::Compile), ("run", Mode::Run), ("eager", Mode::Eager), ("error", Mode::Error)];

/// The state of a CompiledFunction.  None after the garbage collector cleared it.
pub struct Compiled(pub RefCell<Option<Rc<Inner>>>);

pub struct Inner {
    pub function: Owned,
    pub compile: Owned,
    pub name: Owned,
    pub positional: bool,
    pub recompile_limit: Cell<usize>,
    pub accumulated_limit: Cell<usize>,
    pub mode: Cell<Mode>,
    /// Caches of code objects; the most recently used comes first.
    pub codes: RefCell<Vec<Rc<CodeCache>>>,
    pub counters: Counters,
    pub lock: CompileLock,
    /// Compilations since the last reset.
    pub accumulated: Cell<usize>,
    /// Number of resets.  A compilation that started before a reset is not stored.
    pub generation: Cell<u64>,
}

/// The result of one step: a value (maybe a TailCall), or "run the original function".
pub enum Outcome {
    Value(Owned),
    Eager,
}

/// The frame that a step runs.
pub struct Frame<'a> {
    pub this: Obj<'a>,
    pub cache: &'a Rc<CodeCache>,
    pub globals: Obj<'a>,
    pub closure: Option<Obj<'a>>,
    /// Whether `closure` lives as long as `this`.  Then a function built with it may live as long too.
    pub lasting: bool,
    /// The TailCall that holds the arguments, until the code of the frame calls `entered`.
    pub tail: Option<Obj<'a>>,
}

thread_local! {
    /// Number of compilations that this thread is inside.
    static COMPILING: Cell<u32> = const { Cell::new(0) };
    /// Number of frozen views that this thread runs.  A miss of any function then runs eagerly.
    static FROZEN: Cell<u32> = const { Cell::new(0) };
}

/// Freezes all compiled functions in this thread, until the matching `exit_frozen`.
pub fn enter_frozen() {
    FROZEN.with(|n| n.set(n.get() + 1));
}

pub fn exit_frozen() {
    FROZEN.with(|n| n.set(n.get().saturating_sub(1)));
}

/// Releases the compile lock and leaves the compilation, on every exit.
struct Compiling<'a>(&'a CompileLock);

impl<'a> Compiling<'a> {
    fn enter(lock: &'a CompileLock) -> Self {
        COMPILING.with(|n| n.set(n.get() + 1));
        hook_state::pause();
        Compiling(lock)
    }
}

impl Drop for Compiling<'_> {
    fn drop(&mut self) {
        hook_state::resume();
        COMPILING.with(|n| n.set(n.get() - 1));
        self.0.release();
    }
}

impl Compiled {
    #[inline]
    fn inner(&self) -> Res<Rc<Inner>> {
        self.0
            .borrow()
            .clone()
            .ok_or_else(|| runtime_error("this CompiledFunction was cleared by the garbage collector"))
    }

    /// For the garbage collector.
    pub fn visit_held(&self, f: &mut dyn FnMut(Obj)) {
        if let Ok(guard) = self.0.try_borrow() {
            if let Some(inner) = guard.as_ref() {
                inner.visit(f);
            }
        }
    }

    pub fn let_go(&self) {
        let old = self.0.replace(None);
        drop(old);
    }
}

impl Inner {
    fn visit(&self, f: &mut dyn FnMut(Obj)) {
        [&self.function, &self.compile, &self.name].into_iter().for_each(|o| f(o.get()));
        let codes = self.codes.try_borrow();
        if let Ok(codes) = &codes {
            codes.iter().for_each(|c| c.visit(f));
        }
    }

    /// The cache of a code object.  It is moved to the front.
    #[inline]
    pub fn cache(&self, code: Obj) -> Res<Rc<CodeCache>> {
        if let Some(first) = self.codes.borrow().first() {
            if first.code.get() == code {
                return Ok(first.clone());
            }
        }
        self.cache_slow(code)
    }

    #[inline(never)]
    fn cache_slow(&self, code: Obj) -> Res<Rc<CodeCache>> {
        let known = self.codes.borrow().iter().position(|c| c.code.get() == code);
        if let Some(i) = known {
            let mut codes = self.codes.borrow_mut();
            codes[..=i].rotate_right(1);
            return Ok(codes[0].clone());
        }
        let made = CodeCache::new(code)?;
        self.codes.borrow_mut().insert(0, made.clone());
        Ok(made)
    }

    fn eager(&self, args: &[Obj], kwnames: Option<Obj>, tail: Option<Obj>) -> Res<Owned> {
        if tail.is_some_and(tailcall::has_left) {
            return Err(runtime_error("the arguments are gone: generated code started again after entered()"));
        }
        stack::check()?;
        self.counters.eager_calls.add();
        let _entering = self.positional.then(|| CallMark::new(tail));
        let _passing = HookExemption::new(self.function.get().func_code());
        self.function.call(args, kwnames)
    }

    /// One step of a call.  `tail` is the TailCall that leads to this step, if any.
    #[inline]
    fn step(&self, this: Obj, args: &[Obj], kwnames: Option<Obj>, tail: Option<Obj>) -> Res<Owned> {
        if self.mode.get() == Mode::Eager {
            return self.eager(args, kwnames, tail);
        }
        let cache = self.cache(self.function.get().func_code())?;
        if cache.skip.get() {
            return self.eager(args, kwnames, tail);
        }
        if self.positional && (kwnames.is_some() || args.len() != cache.signature.argcount()) {
            return Err(self.wrong_count(&cache, args.len()));
        }
        let mut locals = Locals::default();
        match cache.signature.bind(self.function.get(), args, kwnames, &mut locals) {
            Ok(()) => {}
            Err(Mismatch::Arguments) => return self.function.call(args, kwnames), // raises CPython's own TypeError
            Err(Mismatch::Raised) => return Err(Raised),
        }
        let (globals, closure) = (self.function.get().func_globals(), self.function.get().func_closure());
        let frame = Frame { this, cache: &cache, globals, closure, lasting: true, tail };
        match self.dispatch(&frame, &mut locals)? {
            Outcome::Value(value) => Ok(value),
            Outcome::Eager => {
                drop(locals);
                self.eager(args, kwnames, tail)
            }
        }
    }

    fn wrong_count(&self, cache: &CodeCache, given: usize) -> Raised {
        let want = cache.signature.argcount();
        type_error(&format!(
            "{} takes exactly {want} positional arguments ({given} given)",
            self.name.get().text_or("resume function")
        ))
    }

    /// Looks up an entry and runs it, or handles the miss.
    #[inline]
    fn dispatch(&self, frame: &Frame<'_>, locals: &mut Locals) -> Res<Outcome> {
        if let Some(eye) = watch::eye(frame.this.py()) {
            return self.dispatch_seen(&eye, frame, locals);
        }
        let (mut walk, mut reasons) = (GuardWalk::default(), Reasons::new());
        match frame.cache.find(&locals.slots, frame.globals, &mut walk, &self.counters, &mut reasons) {
            Some(contents) => {
                self.counters.hits.add();
                self.run_entry(&contents, frame, locals, &mut walk)
            }
            None => self.miss(frame, locals, &mut walk, reasons),
        }
    }

    /// `dispatch` while a profiler or watcher is active: ranges for the lookup, the check of each entry, and the run.
    #[cold]
    #[inline(never)]
    fn dispatch_seen(&self, eye: &CallObserver, frame: &Frame<'_>, locals: &mut Locals) -> Res<Outcome> {
        let name = self.name.get().text_or("?");
        let (mut walk, mut reasons) = (GuardWalk::default(), Reasons::new());
        let lookup = eye.range(|| format!("cache lookup of {name}"));
        let found = frame.cache.find_by(&mut walk, &self.counters, &mut reasons, |position, contents, walk| {
            let _range = eye.range(|| format!("guards of {}, entry {position}", contents.title(name)));
            contents.check(&locals.slots, frame.globals, walk)
        });
        drop(lookup);
        let Some(contents) = found else { return self.miss(frame, locals, &mut walk, reasons) };
        self.counters.hits.add();
        locals.hold_all();
        let costs = || contents.profile(&locals.slots, frame.globals);
        eye.tell_entry(frame.this, reasons.len(), contents.guards(), costs)?;
        let _range = eye.range(|| format!("run of {}", contents.title(name)));
        self.run_entry(&contents, frame, locals, &mut walk)
    }

    #[inline(never)]
    fn miss(&self, frame: &Frame<'_>, locals: &mut Locals, walk: &mut GuardWalk, mut reasons: Reasons) -> Res<Outcome> {
        self.counters.misses.add();
        locals.hold_all();
        if runs_eagerly(frame.this.py())? {
            return Ok(Outcome::Eager);
        }
        match self.mode.get() {
            Mode::Run | Mode::Eager => return Ok(Outcome::Eager),
            _ if FROZEN.with(|n| n.get() > 0) => return Ok(Outcome::Eager),
            Mode::Error => return Err(self.refuse(frame, locals, &reasons)),
            Mode::Compile => {}
        }
        if self.limit_reached(frame, &reasons)? {
            return Ok(Outcome::Eager);
        }
        // A thread inside a compilation never waits for another thread's compilation: two threads could wait for each
        // other.
        let may_wait = COMPILING.with(|n| n.get() == 0);
        let acquired = self.lock.acquire(may_wait)?;
        if acquired == Acquisition::Refused {
            return Ok(Outcome::Eager);
        }
        let compiling = Compiling::enter(&self.lock);
        if acquired == Acquisition::Waited {
            reasons.clear();
            if let Some(contents) = frame.cache.find(&locals.slots, frame.globals, walk, &self.counters, &mut reasons) {
                drop(compiling);
                self.counters.hits.add();
                return self.run_entry(&contents, frame, locals, walk);
            }
            if frame.cache.skip.get() || self.mode.get() != Mode::Compile || self.limit_reached(frame, &reasons)? {
                return Ok(Outcome::Eager);
            }
        }
        let Some(entry) = self.compile(frame, locals, &reasons)? else { return Ok(Outcome::Eager) };
        drop(compiling);
        self.run_fresh(&entry, frame, locals, walk)
    }

    /// Calls the compiler and stores its entry.
    fn compile(&self, frame: &Frame<'_>, locals: &Locals, reasons: &Reasons) -> Res<Option<EntryRef>> {
        let generation = self.generation.get();
        let dict = frame.cache.signature.locals_dict(locals)?;
        let result = self.compile.call(&[frame.this, dict.get(), reasons_list(reasons)?.get()], None)?;
        if result.get().is_none() {
            frame.cache.skip.set(true);
            return Ok(None);
        }
        let entry = EntryRef::downcast(result.get()).ok_or_else(|| {
            type_error(&format!(
                "compile() of {} must return an Entry or None, not {}",
                self.name.repr(),
                result.repr()
            ))
        })?;
        if entry.contents(frame.this.py()).is_none() {
            return Ok(None); // the entry has ended: this call runs eagerly, and the next one compiles again
        }
        let signature = &frame.cache.signature;
        entry.bind(&signature.names, signature.freevars.get(), signature.n_params())?;
        self.counters.compiles.add();
        if generation == self.generation.get() {
            self.accumulated.set(self.accumulated.get() + 1);
            drop(frame.cache.push_front(entry.clone()));
        }
        Ok(Some(entry))
    }

    /// The call that caused a compilation.  If its guards do not hold, the original runs, so that the result is never
    /// wrong.
    fn run_fresh(&self, entry: &Entry, frame: &Frame<'_>, locals: &mut Locals, walk: &mut GuardWalk) -> Res<Outcome> {
        walk.reset();
        let Some(contents) = entry.contents(frame.this.py()) else { return Ok(Outcome::Eager) };
        if contents.check(&locals.slots, frame.globals, walk).is_err() {
            self.counters.fresh_failures.add();
            return Ok(Outcome::Eager);
        }
        if let Some(eye) = watch::eye(frame.this.py()) {
            let costs = || contents.profile(&locals.slots, frame.globals);
            eye.tell_entry(frame.this, 0, contents.guards(), costs)?;
        }
        self.run_entry(&contents, frame, locals, walk)
    }

    #[inline]
    fn run_entry(
        &self,
        contents: &Contents,
        frame: &Frame<'_>,
        locals: &mut Locals,
        walk: &mut GuardWalk,
    ) -> Res<Outcome> {
        if contents.kind() == Kind::Eager {
            return Ok(Outcome::Eager);
        }
        let entering = self.positional && contents.kind() == Kind::Function;
        if entering && frame.tail.is_some() {
            locals.let_go();
            walk.let_go();
        }
        let _entering = entering.then(|| CallMark::new(frame.tail));
        match contents.run(locals, frame.closure, frame.lasting, walk) {
            Ok(value) => Ok(Outcome::Value(value)),
            Err(Raised) => {
                let lands = contents.ask_failed();
                if registered_object::UNFIT.known(frame.this.py()).is_some_and(|class| caught(class.get())) {
                    return Ok(Outcome::Eager);
                }
                if !lands && is_error() {
                    frame.tail.into_iter().for_each(tailcall::has_run); // an interrupt may come before its first instruction
                }
                Err(Raised)
            }
        }
    }

    /// One step of a tail call.  An error raised before code of the frame runs is raised where the frame continues.
    /// The same holds for an interrupt before the frame is entered.
    #[inline]
    fn step_of(&self, next: Obj, args: &[Obj], tail: Obj) -> Res<Owned> {
        match self.step(next, args, None, Some(tail)) {
            Err(Raised) if self.positional && tailcall::keep_error(tail) => self.eager(args, None, Some(tail)),
            result => result,
        }
    }

    /// Counts and reports a reached limit.
    fn limit_reached(&self, frame: &Frame<'_>, reasons: &Reasons) -> Res<bool> {
        let over =
            frame.cache.len() >= self.recompile_limit.get() || self.accumulated.get() >= self.accumulated_limit.get();
        if !over {
            return Ok(false);
        }
        self.counters.limit_hits.add();
        if !frame.cache.limit_reported.replace(true) {
            if let Some(callback) = registered_object::ON_LIMIT.known(frame.this.py()) {
                callback.call(&[frame.this, reasons_list(reasons)?.get()], None)?;
            }
        }
        Ok(true)
    }

    fn refuse(&self, frame: &Frame<'_>, locals: &Locals, reasons: &Reasons) -> Raised {
        let Some(class) = registered_object::RECOMPILE_ERROR.known(frame.this.py()) else { return Raised };
        let text = match explain(frame, locals, reasons) {
            Ok(rows) => {
                rows.into_iter().map(|(entry, _, text)| format!("\n  entry {entry}: {text}")).collect::<String>()
            }
            Err(raised) => return raised,
        };
        let what = if reasons.is_empty() { "nothing is compiled yet" } else { "no entry fits this call" };
        raise(
            class.get(),
            &format!("{}: {what}, and mode 'error' forbids a compile{text}", self.name.get().text_or("?")),
        )
    }
}

/// Whether an active state has to see, or changes, every single operator (`ir.guards.foreign_state`).
fn runs_eagerly(py: Python<'_>) -> Res<bool> {
    hook_state::paused(|| Ok(!registered_object::FOREIGN_STATE.get(py)?.call(&[], None)?.get().is_none()))
}

fn reasons_list(reasons: &Reasons) -> Res<Owned> {
    let pairs = reasons
        .iter()
        .map(|(entry, guard)| Owned::tuple_from(vec![Owned::int(*entry as i64)?, Owned::int(i64::from(*guard))?]));
    Owned::list_from(pairs.collect::<Res<Vec<_>>>()?)
}

/// A string for each reason, by `ir.guards.explain`.
pub fn explain(frame: &Frame<'_>, locals: &Locals, reasons: &Reasons) -> Res<Vec<(usize, u32, String)>> {
    let render = registered_object::EXPLAIN.get(frame.this.py())?;
    let scope = registered_object::SCOPE
        .get(frame.this.py())?
        .call(&[frame.cache.signature.locals_dict(locals)?.get(), frame.globals], None)?;
    let entries = frame.cache.snapshot();
    let mut rows = Vec::new();
    for (entry, guard) in reasons {
        let Some(contents) = entries.get(*entry).and_then(|e| e.contents(frame.this.py())) else { continue };
        let guards = contents.guards();
        let text = if (*guard as usize) < guards.tuple_len() {
            render.call(&[guards.tuple_item(*guard as usize), scope.get()], None)?.get().as_str()?.to_owned()
        } else {
            "the source of an input cannot be read".to_owned()
        };
        rows.push((*entry, *guard, text));
    }
    Ok(rows)
}

pub fn compiled(this: Obj) -> Res<Rc<Inner>> {
    callable::state::<Compiled>(this).ok_or_else(|| type_error("not a CompiledFunction"))?.inner()
}

/// Follows tail calls: the engine, not the Python stack, goes from one to the next.
#[inline]
fn follow(inner: &Inner, mut result: Owned) -> Res<Owned> {
    while let Some((next, args)) = tailcall::view(&result)? {
        inner.counters.tail_calls.add();
        let value = match callable::state::<Compiled>(next) {
            Some(state) => state.inner()?.step_of(next, args, result.get())?,
            None => elsewhere(next, args, result.get())?,
        };
        result = value;
    }
    Ok(result)
}

/// A call of a TailCall: generated code waits for its result.
pub fn go_on(tail: Owned) -> Res<Owned> {
    let Some((next, args)) = tailcall::view(&tail)? else { return Ok(tail) };
    let Some(state) = callable::state::<Compiled>(next) else { return elsewhere(next, args, tail.get()) };
    let inner = state.inner()?;
    let result = inner.step_of(next, args, tail.get())?;
    follow(&inner, result)
}

/// A tail call of a function that is not compiled.
fn elsewhere(next: Obj, args: &[Obj], tail: Obj) -> Res<Owned> {
    let _entering = CallMark::new(Some(tail));
    next.own().call(args, None)
}

/// A call of a CompiledFunction.
#[inline]
pub fn call(this: Obj, args: &[Obj], kwnames: Option<Obj>) -> Res<Owned> {
    let inner = compiled(this)?;
    let result = inner.step(this, args, kwnames, None)?;
    follow(&inner, result)
}

/// A frame caught by the hook.  Its locals are its parameters and its function's cells.
pub fn frame(this: Obj, caught: crate::ffi::frame::Frame) -> FrameAction {
    let run = || -> Res<Option<Owned>> {
        let inner = compiled(this)?;
        if inner.mode.get() == Mode::Eager {
            return Ok(None);
        }
        let cache = inner.cache(caught.code())?;
        if cache.skip.get() {
            return Ok(None);
        }
        let mut locals = Locals::default();
        locals.slots.extend((0..cache.signature.n_params()).map(|i| caught.parameter(i).map(Obj::store)));
        let function = caught.function();
        let closure = if function.is_function() { function.func_closure() } else { None };
        locals.add_closure(closure);
        let frame = Frame { this, cache: &cache, globals: caught.globals(), closure, lasting: false, tail: None };
        match inner.dispatch(&frame, &mut locals)? {
            Outcome::Value(value) => follow(&inner, value).map(Some),
            Outcome::Eager => {
                inner.counters.eager_calls.add();
                Ok(None)
            }
        }
    };
    match run() {
        Ok(None) => FrameAction::Default,
        Ok(Some(value)) => FrameAction::Done(Ok(value)),
        Err(raised) => FrameAction::Done(Err(raised)),
    }
}
