//! Accessors: one per row of `ir.source.ACCESSORS`, and the roots.
//!
//! A read gives a value borrowed from its container, or None when the path is gone.  Reads that may run Python code
//! hold the path first and keep their result in the walk.

use super::fallback::or_none;
use super::{Build, Walk};
use crate::ffi::object::value_error;
use crate::ffi::{Obj, Owned, Res};

/// How to get from a value to another.
pub enum Read {
    Attr(Obj),
    InstanceDict(Obj),
    Type,
    MroLookup(Obj),
    Item(i64),
    DictItem(Obj),
    DictKeyAt(usize),
    Cell,
    /// A part of a Python function, and of nothing else: a method has the attributes of its function.
    Function(FunctionPart),
    MethodSelf(Obj),
    MethodFunc(Obj),
}

#[derive(Clone, Copy)]
pub enum FunctionPart {
    Code,
    Defaults,
    KwDefaults,
    Closure,
    Globals,
}

/// The value of `key` in dict storage: None when it cannot be asked, Some(None) when absent.
#[inline]
pub fn dict_lookup(dict: Obj, key: Obj, walk: &mut Walk) -> Option<Option<Obj>> {
    if !dict.is_dict() {
        return None;
    }
    if !key.is_plain_key() {
        walk.hold();
    }
    or_none(dict.dict_get(key))
}

fn attribute(value: Obj, name: Obj, walk: &mut Walk) -> Option<Obj> {
    walk.hold();
    or_none(value.getattr(name)).map(|v| walk.keep(v))
}

type Builder = fn(Obj, &mut Build) -> Res<Read>;

fn name(text: &str, cx: &mut Build) -> Res<Obj> {
    Ok(cx.adopt(Owned::interned(text)?))
}

/// One row per accessor kind.
const READS: &[(&str, Builder)] = &[
    ("attr", |arg, cx| Ok(Read::Attr(cx.keep(arg)))),
    ("instance_dict", |_, cx| Ok(Read::InstanceDict(name("__dict__", cx)?))),
    ("type", |_, _| Ok(Read::Type)),
    ("mro_lookup", |arg, cx| Ok(Read::MroLookup(cx.keep(arg)))),
    ("item", |arg, _| Ok(Read::Item(arg.as_i64()?))),
    ("dict_item", |arg, cx| Ok(Read::DictItem(cx.keep(arg)))),
    ("dict_key_at", |arg, _| Ok(Read::DictKeyAt(arg.as_i64()? as usize))),
    ("cell", |_, _| Ok(Read::Cell)),
    ("code", |_, _| Ok(Read::Function(FunctionPart::Code))),
    ("defaults", |_, _| Ok(Read::Function(FunctionPart::Defaults))),
    ("kwdefaults", |_, _| Ok(Read::Function(FunctionPart::KwDefaults))),
    ("closure", |_, _| Ok(Read::Function(FunctionPart::Closure))),
    ("func_globals", |_, _| Ok(Read::Function(FunctionPart::Globals))),
    ("method_self", |_, cx| Ok(Read::MethodSelf(name("__self__", cx)?))),
    ("method_func", |_, cx| Ok(Read::MethodFunc(name("__func__", cx)?))),
    ("grad", |_, cx| Ok(Read::Attr(name("grad", cx)?))),
];

/// The names of all accessors, to compare with `ir.source.ACCESSORS`.
pub fn accessor_names() -> impl Iterator<Item = &'static str> {
    READS.iter().map(|(name, _)| *name)
}

impl Read {
    pub fn build(kind: &str, arg: Obj, cx: &mut Build) -> Res<Read> {
        match READS.iter().find(|(name, _)| *name == kind) {
            Some((_, builder)) => builder(arg, cx),
            None => {
                let known: Vec<_> = accessor_names().collect();
                Err(value_error(&format!("unknown source kind {kind:?}; known: {}", known.join(", "))))
            }
        }
    }

    #[inline]
    pub fn read(&self, value: Obj, walk: &mut Walk) -> Option<Obj> {
        match self {
            Read::InstanceDict(dict_name) => value.instance_dict().or_else(|| {
                walk.hold();
                or_none(value.generic_getattr(*dict_name)).map(|v| walk.keep(v))
            }),
            Read::DictItem(key) => dict_lookup(value, *key, walk).flatten(),
            Read::Type => Some(value.class()),
            Read::MroLookup(name) => value.mro_lookup(*name),
            Read::Item(i) => item(value, *i, walk),
            Read::Attr(name) => attribute(value, *name, walk),
            Read::DictKeyAt(i) => key_at(value, *i, walk),
            Read::Cell => value.is_cell().then(|| value.cell_get()).flatten(),
            Read::Function(part) => function_part(value, *part),
            Read::MethodSelf(_) if value.is_method() => Some(value.method_self()),
            Read::MethodFunc(_) if value.is_method() => Some(value.method_func()),
            Read::MethodSelf(name) | Read::MethodFunc(name) => attribute(value, *name, walk),
        }
    }
}

#[inline]
fn item(value: Obj, i: i64, walk: &mut Walk) -> Option<Obj> {
    let at = |n: usize| if i < 0 { usize::try_from(i + n as i64).ok() } else { Some(i as usize) };
    if value.is_tuple() {
        return at(value.tuple_len()).filter(|i| *i < value.tuple_len()).map(|i| value.tuple_item(i));
    }
    if value.is_list() {
        return at(value.list_len()).and_then(|i| value.list_item(i));
    }
    walk.hold();
    let i = at(or_none(value.len())?)?;
    or_none(value.get_index(i)).map(|v| walk.keep(v))
}

fn key_at(value: Obj, i: usize, walk: &mut Walk) -> Option<Obj> {
    if value.is_dict_exact() {
        let mut pos = 0;
        for _ in 0..i {
            value.dict_next(&mut pos)?;
        }
        return value.dict_next(&mut pos).map(|(key, _)| key);
    }
    walk.hold();
    let keys = or_none(value.to_tuple())?;
    let key = (i < keys.tuple_len()).then(|| keys.tuple_item(i).own())?;
    Some(walk.keep(key))
}

#[inline]
fn function_part(f: Obj, part: FunctionPart) -> Option<Obj> {
    if !f.is_function() {
        return None;
    }
    Some(match part {
        FunctionPart::Code => f.func_code(),
        FunctionPart::Globals => f.func_globals(),
        FunctionPart::Defaults => f.func_defaults().unwrap_or(Obj::none()),
        FunctionPart::KwDefaults => f.func_kwdefaults().unwrap_or(Obj::none()),
        FunctionPart::Closure => f.func_closure().unwrap_or(Obj::none()),
    })
}
