//! Binds a call's arguments to the frame's locals, as CPython does.
//!
//! In: positional and keyword arguments.  Out: `Locals`: one slot for each parameter in `co_varnames` order (`*args` as
//! a tuple, `**kwargs` as a dict), followed by the cells of the closure.  Arguments that do not fit give `Mismatch`.
//! The caller then lets the original function raise its own TypeError.

use crate::ffi::{Obj, Owned, Raised, Res, Stored};
use smallvec::SmallVec;

const VARARGS: i64 = 0x4;
const VARKEYWORDS: i64 = 0x8;

/// The parameters of a code object.
pub struct Signature {
    /// Number of positional parameters, including positional-only ones.
    argcount: usize,
    posonly: usize,
    kwonly: usize,
    varargs: bool,
    varkeywords: bool,
    /// Names of the slots: parameters, followed by free variables.
    pub names: Vec<Owned>,
    pub n_free: usize,
    pub freevars: Owned,
}

/// The locals array of a call: one slot for each parameter and cell.  The caller owns the values (rule *stored*), or `held`.
#[derive(Default)]
pub struct Locals {
    pub slots: SmallVec<[Option<Stored>; 16]>,
    /// Owners of the slots' values that the caller does not hold.
    held: SmallVec<[Owned; 2]>,
}

#[derive(Debug)]
pub enum Mismatch {
    /// Too many, too few or unknown arguments.
    Arguments,
    Raised,
}

impl From<Raised> for Mismatch {
    fn from(_: Raised) -> Self {
        Mismatch::Raised
    }
}

fn int(code: Obj, name: &std::ffi::CStr) -> Res<i64> {
    code.own().attr(name)?.as_i64()
}

impl Signature {
    pub fn of(code: Obj) -> Res<Signature> {
        let flags = int(code, c"co_flags")?;
        let argcount = int(code, c"co_argcount")? as usize;
        let kwonly = int(code, c"co_kwonlyargcount")? as usize;
        let (varargs, varkeywords) = (flags & VARARGS != 0, flags & VARKEYWORDS != 0);
        let n_params = argcount + kwonly + usize::from(varargs) + usize::from(varkeywords);
        let freevars = code.own().attr(c"co_freevars")?;
        let varnames = code.own().attr(c"co_varnames")?;
        let names =
            varnames.get().tuple_items().take(n_params).chain(freevars.get().tuple_items()).map(|n| n.own()).collect();
        Ok(Signature {
            argcount,
            posonly: int(code, c"co_posonlyargcount")? as usize,
            kwonly,
            varargs,
            varkeywords,
            names,
            n_free: freevars.get().tuple_len(),
            freevars,
        })
    }

    pub fn n_params(&self) -> usize {
        self.names.len() - self.n_free
    }

    pub fn argcount(&self) -> usize {
        self.argcount
    }

    fn is_plain(&self) -> bool {
        self.kwonly == 0 && !self.varargs && !self.varkeywords
    }

    /// Binds the arguments.  `function` provides defaults and closure.
    #[inline]
    pub fn bind(&self, function: Obj, args: &[Obj], kwnames: Option<Obj>, out: &mut Locals) -> Result<(), Mismatch> {
        if kwnames.is_none() && args.len() == self.argcount && self.is_plain() {
            out.slots.extend(args.iter().map(|a| Some(a.store())));
        } else {
            self.bind_general(function, args, kwnames, out)?;
        }
        if self.n_free > 0 {
            out.add_closure(function.func_closure());
        }
        Ok(())
    }

    #[inline(never)]
    fn bind_general(
        &self,
        function: Obj,
        args: &[Obj],
        kwnames: Option<Obj>,
        out: &mut Locals,
    ) -> Result<(), Mismatch> {
        let n_keywords = kwnames.map_or(0, |k| k.tuple_len());
        let (positional, by_keyword) = args.split_at(args.len() - n_keywords);
        let named = self.argcount + self.kwonly;
        out.slots.resize(self.n_params(), None);
        let given = positional.len().min(self.argcount);
        for (slot, value) in out.slots.iter_mut().zip(&positional[..given]) {
            *slot = Some((*value).store());
        }
        if self.varargs {
            out.slots[named] = Some(out.keep(Owned::tuple(&positional[given..])?));
        } else if given < positional.len() {
            return Err(Mismatch::Arguments);
        }
        let extra = if self.varkeywords { Some(Owned::dict()?) } else { None };
        if let Some(dict) = &extra {
            out.slots[named + usize::from(self.varargs)] = Some(out.keep(dict.clone()));
        }
        if let Some(names) = kwnames {
            for (name, value) in names.tuple_items().zip(by_keyword) {
                self.bind_keyword(name, *value, extra.as_ref(), out)?;
            }
        }
        self.fill_defaults(function, given, out)
    }

    fn keyword_slot(&self, name: Obj) -> Res<Option<usize>> {
        let candidates = || self.names.iter().enumerate().take(self.argcount + self.kwonly).skip(self.posonly);
        if let Some((i, _)) = candidates().find(|(_, n)| n.get() == name) {
            return Ok(Some(i));
        }
        for (i, n) in candidates() {
            if n.equals(name)? {
                return Ok(Some(i));
            }
        }
        Ok(None)
    }

    fn bind_keyword(&self, name: Obj, value: Obj, extra: Option<&Owned>, out: &mut Locals) -> Result<(), Mismatch> {
        match (self.keyword_slot(name)?, extra) {
            (Some(slot), _) if out.slots[slot].is_some() => Err(Mismatch::Arguments),
            (Some(slot), _) => {
                out.slots[slot] = Some(value.store());
                Ok(())
            }
            (None, Some(dict)) => Ok(dict.dict_set(name, value)?),
            (None, None) => Err(Mismatch::Arguments),
        }
    }

    fn fill_defaults(&self, function: Obj, given: usize, out: &mut Locals) -> Result<(), Mismatch> {
        if out.slots[given..self.argcount].iter().any(Option::is_none) {
            // Held: the function's defaults may be replaced while the call runs.
            let defaults = function.func_defaults().map(|d| out.keep(d.own())).ok_or(Mismatch::Arguments)?;
            let first = self.argcount.checked_sub(defaults.get().tuple_len());
            for i in given..self.argcount {
                if out.slots[i].is_none() {
                    // With more defaults than parameters, CPython uses the last ones.
                    let at = match first {
                        Some(first) => i.checked_sub(first).ok_or(Mismatch::Arguments)?,
                        None => i + defaults.get().tuple_len() - self.argcount,
                    };
                    out.slots[i] = Some(defaults.get().tuple_item(at).store());
                }
            }
        }
        for i in self.argcount..self.argcount + self.kwonly {
            if out.slots[i].is_none() {
                let defaults = function.func_kwdefaults().ok_or(Mismatch::Arguments)?.own();
                let value = defaults.dict_get(&self.names[i])?.ok_or(Mismatch::Arguments)?;
                out.slots[i] = Some(out.keep(value));
            }
        }
        Ok(())
    }

    /// `{name: value}` of all bound slots.
    pub fn locals_dict(&self, locals: &Locals) -> Res<Owned> {
        let dict = Owned::dict()?;
        for (name, value) in self.names.iter().zip(&locals.slots) {
            if let Some(value) = value {
                dict.dict_set(name.get(), value.get())?;
            }
        }
        Ok(dict)
    }
}

impl Locals {
    pub fn keep(&mut self, value: Owned) -> Stored {
        let borrowed = value.get().store();
        self.held.push(value);
        borrowed
    }

    /// Adds the cells of a closure.  The function holds them.
    pub fn add_closure(&mut self, closure: Option<Obj>) {
        if let Some(closure) = closure {
            self.slots.extend(closure.tuple_items().map(|cell| Some(cell.store())));
        }
    }

    /// Drops the held references.  Another holder keeps the slots' values alive until the code has finished with them.
    pub fn let_go(&mut self) {
        self.held.clear();
    }

    /// Takes strong references to all values, before code runs that may drop the caller's references.
    pub fn hold_all(&mut self) {
        let all: Vec<Owned> = self.slots.iter().flatten().map(|o| o.get().own()).collect();
        self.held.extend(all);
    }
}
