//! The Python type CompiledFunction: its constructor, methods and properties.

use crate::cache::{Counters, Reasons};
use crate::compiled::{call, compiled, explain, go_on, Compiled, Frame, Inner, Mode, MODES};
use crate::entry::EntryRef;
use crate::ffi::callable::{Callable, Method, Property};
use crate::ffi::class::Class;
use crate::ffi::object::{type_error, value_error};
use crate::ffi::sync::CompileLock;
use crate::ffi::{Obj, Owned, Raised, Res};
use crate::guard::GuardWalk;
use crate::signature::{Locals, Mismatch};
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::rc::Rc;

static CLASS: Class<Compiled> = Class::new();

impl Callable for Compiled {
    const NAME: &'static CStr = c"pycompiler._native.CompiledFunction";
    const DOC: &'static CStr = c"CompiledFunction(fn, compile, *, positional=False, recompile_limit=8, accumulated_limit=256, name=None)\n--\n\nA compiled Python function: entries under guards, compiled on demand by `compile(self, locals, reasons)`.";
    const METHODS: &'static [Method] = &[
        Method { name: c"counters", doc: c"Counters of this callable, by name.", run: counters },
        Method { name: c"reset", doc: c"Drops all entries and counters; the next call compiles again.", run: reset },
        Method { name: c"set_mode", doc: c"set_mode('compile' | 'run' | 'eager' | 'error').", run: set_mode },
        Method {
            name: c"install",
            doc: c"install(entry): stores an entry that was compiled elsewhere, for the function's code object.",
            run: install,
        },
        Method {
            name: c"entries_of",
            doc: c"The entries of one code object, most recently used first.",
            run: entries_of,
        },
        Method {
            name: c"explain_miss",
            doc: c"Why no entry fits these arguments: [(entry index, guard index, text)]; empty when one fits.",
            run: explain_miss,
        },
    ];
    const PROPERTIES: &'static [Property] = &[
        Property { name: c"entries", doc: c"All entries, most recently used first.", get: entries, set: None },
        Property { name: c"mode", doc: c"The action of a call without a fitting entry.", get: mode, set: None },
        Property { name: c"fn", doc: c"The original function.", get: original, set: None },
        Property { name: c"name", doc: c"The name used in messages.", get: name, set: None },
        Property {
            name: c"recompile_limit",
            doc: c"Most entries for one code object.",
            get: recompile_limit,
            set: Some(set_recompile_limit),
        },
        Property {
            name: c"accumulated_limit",
            doc: c"Most compilations since the last reset.",
            get: accumulated_limit,
            set: Some(set_accumulated_limit),
        },
    ];

    #[inline]
    fn class() -> &'static Class<Self> {
        &CLASS
    }
    fn new(args: Obj, kwargs: Option<Obj>) -> Res<Self> {
        new(args, kwargs)
    }
    #[inline]
    fn call(this: Obj, args: &[Obj], kwnames: Option<Obj>) -> Res<Owned> {
        call(this, args, kwnames)
    }
    fn go_on(call: Owned) -> Res<Owned> {
        go_on(call)
    }
    fn repr(this: Obj) -> Res<Owned> {
        repr(this)
    }
    fn visit(&self, f: &mut dyn FnMut(Obj)) {
        self.visit_held(f);
    }
    fn clear(&self) {
        self.let_go();
    }
}

fn limit(value: &Owned, what: &str) -> Res<usize> {
    usize::try_from(value.as_i64()?).map_err(|_| value_error(&format!("{what} must not be negative")))
}

/// Parses `CompiledFunction(fn, compile, *, positional, recompile_limit, accumulated_limit, name)`.
fn new(args: Obj, kwargs: Option<Obj>) -> Res<Compiled> {
    if args.tuple_len() != 2 {
        return Err(type_error("CompiledFunction(fn, compile, *, ...) takes exactly two positional arguments"));
    }
    let (function, compile) = (args.tuple_item(0).own(), args.tuple_item(1).own());
    if !function.get().is_function() {
        return Err(type_error(&format!("CompiledFunction needs a Python function, not {}", function.repr())));
    }
    if !compile.get().is_callable() {
        return Err(type_error(&format!("compile must be callable, not {}", compile.repr())));
    }
    let inner = Inner {
        name: function.attr(c"__qualname__")?,
        function,
        compile,
        positional: false,
        recompile_limit: Cell::new(8),
        accumulated_limit: Cell::new(256),
        mode: Cell::new(Mode::Compile),
        codes: RefCell::default(),
        counters: Counters::default(),
        lock: CompileLock::default(),
        accumulated: Cell::new(0),
        generation: Cell::new(0),
    };
    let inner = options(inner, kwargs)?;
    inner.cache(inner.function.get().func_code())?;
    Ok(Compiled(RefCell::new(Some(Rc::new(inner)))))
}

fn options(mut inner: Inner, kwargs: Option<Obj>) -> Res<Inner> {
    let mut pos = 0;
    while let Some((key, value)) = kwargs.and_then(|k| k.dict_next(&mut pos)).map(|(k, v)| (k.own(), v.own())) {
        match key.get().as_str()? {
            "positional" => inner.positional = value.is_true()?,
            "recompile_limit" => inner.recompile_limit.set(limit(&value, "recompile_limit")?),
            "accumulated_limit" => inner.accumulated_limit.set(limit(&value, "accumulated_limit")?),
            "name" if value.get().is_none() => {}
            "name" => inner.name = value,
            other => {
                return Err(type_error(&format!("CompiledFunction() got an unexpected keyword argument '{other}'")))
            }
        }
    }
    Ok(inner)
}

fn repr(this: Obj) -> Res<Owned> {
    let inner = compiled(this)?;
    Owned::str(&format!("<CompiledFunction {}>", inner.name.get().text_or("?")))
}

fn no_arguments(args: &[Obj], name: &str) -> Res<()> {
    if args.is_empty() {
        Ok(())
    } else {
        Err(type_error(&format!("{name}() takes no arguments ({} given)", args.len())))
    }
}

fn counters(this: Obj, args: &[Obj], _: Option<Obj>) -> Res<Owned> {
    no_arguments(args, "counters")?;
    let dict = Owned::dict()?;
    for (name, value) in compiled(this)?.counters.rows() {
        dict.dict_set(Owned::interned(name)?.get(), Owned::int(value as i64)?.get())?;
    }
    Ok(dict)
}

fn reset(this: Obj, args: &[Obj], _: Option<Obj>) -> Res<Owned> {
    no_arguments(args, "reset")?;
    let inner = compiled(this)?;
    inner.generation.set(inner.generation.get() + 1);
    inner.accumulated.set(0);
    inner.counters.reset();
    // Running entries keep themselves alive.  Dropped outside of any borrow, because destructors run Python code.
    let dropped: Vec<_> = inner.codes.borrow_mut().drain(..).map(|c| (c.take(), c)).collect();
    drop(dropped);
    Ok(Owned::none())
}

fn set_mode(this: Obj, args: &[Obj], _: Option<Obj>) -> Res<Owned> {
    let [name] = args else { return Err(type_error("set_mode(mode) takes exactly one argument")) };
    let name = name.as_str()?;
    match MODES.iter().find(|(known, _)| *known == name) {
        Some((_, mode)) => compiled(this)?.mode.set(*mode),
        None => return Err(value_error(&format!("unknown mode {name:?}; known: compile, run, eager, error"))),
    }
    Ok(Owned::none())
}

fn mode(this: Obj) -> Res<Owned> {
    let mode = compiled(this)?.mode.get();
    Owned::str(MODES.iter().find(|(_, m)| *m == mode).map_or("", |(name, _)| name))
}

fn original(this: Obj) -> Res<Owned> {
    Ok(compiled(this)?.function.clone())
}

fn name(this: Obj) -> Res<Owned> {
    Ok(compiled(this)?.name.clone())
}

fn recompile_limit(this: Obj) -> Res<Owned> {
    Owned::int(compiled(this)?.recompile_limit.get() as i64)
}

fn set_recompile_limit(this: Obj, value: Obj) -> Res<()> {
    compiled(this)?.recompile_limit.set(limit(&value.own(), "recompile_limit")?);
    Ok(())
}

fn accumulated_limit(this: Obj) -> Res<Owned> {
    Owned::int(compiled(this)?.accumulated_limit.get() as i64)
}

fn set_accumulated_limit(this: Obj, value: Obj) -> Res<()> {
    compiled(this)?.accumulated_limit.set(limit(&value.own(), "accumulated_limit")?);
    Ok(())
}

fn entries(this: Obj) -> Res<Owned> {
    let inner = compiled(this)?;
    let all: Vec<Owned> = inner.codes.borrow().iter().flat_map(|c| c.snapshot()).map(|e| e.obj().own()).collect();
    Owned::list_from(all)
}

fn entries_of(this: Obj, args: &[Obj], _: Option<Obj>) -> Res<Owned> {
    let [code] = args else { return Err(type_error("entries_of(code) takes exactly one argument")) };
    let inner = compiled(this)?;
    let found = inner.codes.borrow().iter().find(|c| c.code.get() == *code).cloned();
    let entries: Vec<Owned> = found.iter().flat_map(|c| c.snapshot()).map(|e| e.obj().own()).collect();
    Owned::list_from(entries)
}

/// Stores an entry as the most recently used one.  It does not count as a compilation; the recompile limit counts it.
fn install(this: Obj, args: &[Obj], _: Option<Obj>) -> Res<Owned> {
    let [entry] = args else { return Err(type_error("install(entry) takes exactly one argument")) };
    let entry = EntryRef::downcast(*entry).ok_or_else(|| type_error("install(entry) takes an Entry"))?;
    let inner = compiled(this)?;
    let cache = inner.cache(inner.function.get().func_code())?;
    let signature = &cache.signature;
    entry.bind(&signature.names, signature.freevars.get(), signature.n_params())?;
    drop(cache.push_front(entry));
    Ok(Owned::none())
}

fn explain_miss(this: Obj, args: &[Obj], kwnames: Option<Obj>) -> Res<Owned> {
    let inner = compiled(this)?;
    let cache = inner.cache(inner.function.get().func_code())?;
    let mut locals = Locals::default();
    match cache.signature.bind(inner.function.get(), args, kwnames, &mut locals) {
        Ok(()) => {}
        Err(Mismatch::Raised) => return Err(Raised),
        Err(Mismatch::Arguments) => {
            return Err(type_error(&format!(
                "explain_miss: these arguments do not fit the signature of {}",
                inner.name.repr()
            )))
        }
    }
    let globals = inner.function.get().func_globals();
    let frame = Frame { this, cache: &cache, globals, closure: None, lasting: true, tail: None };
    let mut reasons = Reasons::new();
    for (i, entry) in cache.snapshot().iter().enumerate() {
        let Some(contents) = entry.contents(this.py()) else { continue };
        match contents.check(&locals.slots, frame.globals, &mut GuardWalk::default()) {
            Ok(()) => return Owned::list_from(vec![]),
            Err(guard) => reasons.push((i, guard)),
        }
    }
    let rows = explain(&frame, &locals, &reasons)?.into_iter().map(|(entry, guard, text)| {
        Owned::tuple_from(vec![Owned::int(entry as i64)?, Owned::int(i64::from(guard))?, Owned::str(&text)?])
    });
    Owned::list_from(rows.collect::<Res<Vec<_>>>()?)
}
