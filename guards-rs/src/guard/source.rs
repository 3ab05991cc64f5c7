//! Accessors and roots of sources: one accessor for each row of `ir.source.ACCESSORS`.
//!
//! `Read::read` returns a value borrowed from its container, or None when the path does not exist.  If reading may run
//! Python code, `Read::ask` is called with an owned value, and returns an owned one.

use super::fallback::or_none;
use super::Build;
use crate::ffi::mro::ClassAttribute;
use crate::ffi::object::{import, value_error};
use crate::ffi::torch::{Layout, RawTensor};
use crate::ffi::{MayRunPython, Obj, Owned, Quiet, Res, Stored};
use crate::hook_state::paused;
use crate::registered_object::{self, RegisteredObject};
use crate::tensor_view::{torch, Level};
use pyo3::Python;
use smallvec::SmallVec;

/// An accessor: leads from one value to another.
pub enum Read {
    Attr(Stored),
    InstanceDict(Stored),
    Type,
    MroLookup(ClassAttribute),
    Item(i64),
    DictItem(Key),
    DictKeyAt(usize),
    /// The value at a position in storage order.  For keys whose hash must not be computed by a lookup.
    DictValueAt(usize),
    Cell,
    /// A part of a Python function.  Other objects fail: a method, for example, has the attributes of its function.
    Function(FunctionPart),
    MethodSelf(Stored),
    MethodFunc(Stored),
    /// The referent of a `weakref.ref`.  None when the referent is dead.
    Referent,
    Dim(Box<Dim>),
    /// The negated value of an `int`.
    Minus,
    /// A tensor that shares the memory of a NumPy array.
    AsTensor,
    /// A part of a started iterator.
    Begun(Stored),
    Computed(Box<Computed>),
}

/// A function of the package, called with the value and with the objects at other sources of the frame.
pub struct Computed {
    pub function: Stored,
    pub places: Box<[Place]>,
}

pub enum Root {
    Local(usize),
    Globals,
    Const(Stored),
}

pub struct Place {
    pub root: Root,
    pub reads: Vec<Read>,
}

impl Computed {
    /// Runs Python code.
    pub fn ask(&self, value: &Owned, locals: &[Option<Stored>], globals: Obj) -> Option<Owned> {
        let found: SmallVec<[Owned; 6]> =
            self.places.iter().map(|place| place.value(locals, globals)).collect::<Option<_>>()?;
        let args: SmallVec<[Obj; 8]> = std::iter::once(value.get()).chain(found.iter().map(|v| v.get())).collect();
        or_none(paused(|| self.function.get().own().call(&args, None)))
    }
}

impl Place {
    fn value(&self, locals: &[Option<Stored>], globals: Obj) -> Option<Owned> {
        let root = match self.root {
            Root::Local(slot) => locals.get(slot).copied().flatten()?,
            Root::Globals => globals.store(),
            Root::Const(value) => value,
        };
        self.reads.iter().try_fold(root.get().own(), |value, read| match (read, read.read(value.get())) {
            (Read::Computed(computed), _) => computed.ask(&value, locals, globals),
            (_, Ok(found)) => found.map(Obj::own),
            (_, Err(MayRunPython)) => read.fresh(value.get()).or_else(|| read.ask(&value)),
        })
    }
}

#[derive(Clone, Copy)]
pub enum FunctionPart {
    Code,
    Defaults,
    KwDefaults,
    Closure,
    Globals,
}

/// A size or stride of a tensor: the name of its method, and the dimension.
pub struct Dim {
    method: Stored,
    at: Stored,
    dim: usize,
    strides: bool,
    /// Tensors of these classes are read directly in memory.  `layout` says where.
    plain: [Stored; 2],
    layout: Option<Layout>,
}

impl Dim {
    fn build(method: &str, at: Obj, cx: &mut Build) -> Res<Dim> {
        let known = torch(at.py())?;
        let root = import(c"torch")?;
        let plain = [cx.adopt(root.attr(c"Tensor")?), cx.adopt(root.attr(c"nn")?.attr(c"Parameter")?)];
        let layout = known.layout.filter(|_| known.level == Level::Offsets);
        let dim = at.own().as_i64()? as usize;
        Ok(Dim { method: name(method, cx)?, at: cx.keep(at), dim, strides: method == "stride", plain, layout })
    }

    fn number(&self, value: Obj) -> Option<i64> {
        let layout = self.layout.filter(|_| self.plain.contains(&value.class().store()))?;
        let tensor = RawTensor::of(value, layout);
        let (sizes, strides) = if tensor.is_defined() { tensor.sizes_strides() } else { return None };
        (if self.strides { strides } else { sizes }).get(self.dim).copied()
    }
}

/// Largest number of keys that each call scans to know whether comparing them runs Python code.
const SCAN: usize = 16;

/// A constant key of dicts.
pub struct Key(Stored);

impl Key {
    pub fn build(key: Obj, cx: &mut Build) -> Key {
        Key(cx.keep(key))
    }

    pub fn get(&self) -> Obj<'_> {
        self.0.get()
    }

    /// The value in dict storage.  None when the key is absent, or when `dict` is no dict.
    #[inline]
    pub fn find<'a>(&self, dict: Obj<'a>) -> Quiet<Option<Obj<'a>>> {
        if !dict.is_dict() {
            return Ok(None);
        }
        dict.dict_find(self.get(), SCAN)
    }

    /// The same for the recorder, which looks once and scans any number of keys.
    pub fn find_slowly<'a>(&self, dict: Obj<'a>) -> Option<Obj<'a>> {
        dict.is_dict().then(|| dict.dict_find(self.get(), usize::MAX).ok()).flatten().flatten()
    }

    /// Whether a lookup runs no Python code in the current state of the dict.
    pub fn is_quiet_in(&self, dict: Obj) -> bool {
        dict.is_dict() && dict.dict_find(self.get(), usize::MAX).is_ok()
    }

    /// Some(None) when the key is absent; None when the lookup fails.
    pub fn ask(&self, dict: &Owned) -> Option<Option<Owned>> {
        dict.get().is_dict().then(|| or_none(dict.dict_get(&self.get().own()))).flatten()
    }
}

type Builder = fn(Obj, &mut Build) -> Res<Read>;

fn name(text: &str, cx: &mut Build) -> Res<Stored> {
    Ok(cx.adopt(Owned::interned(text)?))
}

/// One row per accessor kind.
const READS: &[(&str, Builder)] = &[
    ("attr", |arg, cx| Ok(Read::Attr(cx.keep(arg)))),
    ("instance_dict", |_, cx| Ok(Read::InstanceDict(name("__dict__", cx)?))),
    ("type", |_, _| Ok(Read::Type)),
    ("mro_lookup", |arg, cx| Ok(Read::MroLookup(ClassAttribute::new(cx.keep(arg).get())))),
    ("item", |arg, _| Ok(Read::Item(arg.own().as_i64()?))),
    ("dict_item", |arg, cx| Ok(Read::DictItem(Key::build(arg, cx)))),
    ("dict_key_at", |arg, _| Ok(Read::DictKeyAt(arg.own().as_i64()? as usize))),
    ("dict_value_at", |arg, _| Ok(Read::DictValueAt(arg.own().as_i64()? as usize))),
    ("cell", |_, _| Ok(Read::Cell)),
    ("code", |_, _| Ok(Read::Function(FunctionPart::Code))),
    ("defaults", |_, _| Ok(Read::Function(FunctionPart::Defaults))),
    ("kwdefaults", |_, _| Ok(Read::Function(FunctionPart::KwDefaults))),
    ("closure", |_, _| Ok(Read::Function(FunctionPart::Closure))),
    ("func_globals", |_, _| Ok(Read::Function(FunctionPart::Globals))),
    ("method_self", |_, cx| Ok(Read::MethodSelf(name("__self__", cx)?))),
    ("method_func", |_, cx| Ok(Read::MethodFunc(name("__func__", cx)?))),
    ("referent", |_, _| Ok(Read::Referent)),
    ("grad", |_, cx| Ok(Read::Attr(name("grad", cx)?))),
    ("size", |dim, cx| Ok(Read::Dim(Box::new(Dim::build("size", dim, cx)?)))),
    ("stride", |dim, cx| Ok(Read::Dim(Box::new(Dim::build("stride", dim, cx)?)))),
    ("minus", |_, _| Ok(Read::Minus)),
    ("as_tensor", |_, _| Ok(Read::AsTensor)),
    ("begun", |arg, cx| Ok(Read::Begun(cx.keep(arg)))),
    ("computed", |_, _| Err(value_error("a computed source needs the other sources of its guard tree"))),
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

    /// The value of a read that creates an object and runs no Python code.  None when this read cannot do so.
    #[inline]
    pub fn fresh(&self, value: Obj) -> Option<Owned> {
        match self {
            Read::Dim(dim) => dim.number(value).and_then(made),
            Read::Minus => minus(value),
            _ => None,
        }
    }

    #[inline]
    pub fn read<'a>(&self, value: Obj<'a>) -> Quiet<Option<Obj<'a>>> {
        match self {
            Read::InstanceDict(_) => value.instance_dict().map(Some).ok_or(MayRunPython),
            Read::DictItem(key) => key.find(value),
            Read::Type => Ok(Some(value.class())),
            Read::MroLookup(name) => name.find(value),
            Read::Item(i) => item(value, *i),
            Read::Attr(_) | Read::Dim(_) | Read::Minus | Read::AsTensor | Read::Begun(_) | Read::Computed(_) => {
                Err(MayRunPython)
            }
            Read::DictKeyAt(i) => key_at(value, *i),
            Read::DictValueAt(i) => Ok(value_at(value, *i)),
            Read::Cell => Ok(value.is_cell().then(|| value.cell_get()).flatten()),
            Read::Function(part) => Ok(function_part(value, *part)),
            Read::MethodSelf(_) if value.is_method() => Ok(Some(value.method_self())),
            Read::MethodFunc(_) if value.is_method() => Ok(Some(value.method_func())),
            Read::MethodSelf(_) | Read::MethodFunc(_) => Err(MayRunPython),
            Read::Referent => Ok(value.is_weakref_exact().then(|| value.weakref_target().unwrap_or(Obj::none()))),
        }
    }

    /// The same read after `read` returned `MayRunPython`.  Python code may run.
    pub fn ask(&self, value: &Owned) -> Option<Owned> {
        match self {
            Read::InstanceDict(dict_name) => or_none(value.generic_getattr(dict_name.get())),
            Read::Attr(name) | Read::MethodSelf(name) | Read::MethodFunc(name) => or_none(value.getattr(name.get())),
            Read::Dim(dim) => {
                or_none(value.getattr(dim.method.get()).and_then(|method| method.call(&[dim.at.get()], None)))
            }
            Read::Minus => minus(value.get()),
            Read::DictItem(key) => key.ask(value).flatten(),
            Read::MroLookup(name) => name.ask(value),
            Read::Item(i) => {
                let at = position(*i, or_none(value.len())?)?;
                or_none(value.get_index(at))
            }
            Read::DictKeyAt(i) => {
                let keys = or_none(value.to_tuple())?;
                (*i < keys.get().tuple_len()).then(|| keys.get().tuple_item(*i).own())
            }
            Read::AsTensor => ask_python(value.get().py(), &registered_object::TENSOR_OF, &[value.get()]),
            Read::Begun(what) => ask_python(value.get().py(), &registered_object::BEGUN, &[value.get(), what.get()]),
            Read::Type | Read::Cell | Read::Function(_) | Read::Referent | Read::DictValueAt(_) | Read::Computed(_) => {
                None
            }
        }
    }
}

/// Calls a function of the package.  The frame hook is paused, since its frames are not the program's.
fn ask_python(py: Python<'_>, reader: &RegisteredObject, args: &[Obj]) -> Option<Owned> {
    or_none(paused(|| reader.get(py)?.call(args, None)))
}

/// None when memory is exhausted.
fn made(number: i64) -> Option<Owned> {
    or_none(Owned::int(number))
}

fn minus(value: Obj) -> Option<Owned> {
    value.exact_i64().and_then(i64::checked_neg).and_then(made)
}

/// The position of index `i` among `len` items.
#[inline]
fn position(i: i64, len: usize) -> Option<usize> {
    usize::try_from(if i < 0 { i + len as i64 } else { i }).ok()
}

#[inline]
fn item(value: Obj, i: i64) -> Quiet<Option<Obj>> {
    if value.is_tuple() {
        let len = value.tuple_len();
        return Ok(position(i, len).filter(|i| *i < len).map(|i| value.tuple_item(i)));
    }
    if value.is_list() {
        return Ok(position(i, value.list_len()).and_then(|i| value.list_item(i)));
    }
    Err(MayRunPython)
}

fn key_at(value: Obj, i: usize) -> Quiet<Option<Obj>> {
    if !value.is_dict_exact() {
        return Err(MayRunPython);
    }
    let mut pos = 0;
    let mut keys = std::iter::from_fn(|| value.dict_next(&mut pos));
    Ok(keys.nth(i).map(|(key, _)| key))
}

fn value_at(value: Obj, i: usize) -> Option<Obj> {
    let mut pos = 0;
    value.is_dict().then(|| std::iter::from_fn(|| value.dict_next(&mut pos)).nth(i).map(|(_, found)| found)).flatten()
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
