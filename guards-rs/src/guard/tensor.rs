//! Guard: class, dispatch keys, dtype, device, requires_grad, sizes and strides of a tensor match a `TensorSpec`.

use super::fallback::{or_false, Oracle};
use super::fast::{PinnedAnswer, Pins};
use super::{Build, Kind};
use crate::ffi::tensor_words::{Pattern, PatternSpec};
use crate::ffi::torch::{Layout, RawTensor, RequiresGrad};
use crate::ffi::{MayRunPython, Obj, Owned, Quiet, Res, Stored};
use crate::registered_object;
use crate::tensor_view::{dtype_code, torch, Level, Torch};
use std::rc::Rc;

/// Stands for a size or stride that is not compared.
const ANY: i64 = i64::MIN;

pub struct Tensor {
    class: Stored,
    /// Decides for most tensors.  Equal specs share it, so that a call touches little memory.
    alike: Option<Rc<LayoutWords>>,
    /// Whether the device is compared too.
    device: bool,
    spec: Box<Spec>,
}

/// All of the spec but the class, as words of memory.
pub struct LayoutWords {
    pattern: Pattern,
    requires_grad: bool,
    layout: Layout,
    getter: RequiresGrad,
}

impl LayoutWords {
    #[inline]
    fn holds(&self, value: Obj) -> bool {
        self.pattern.fits(value, self.layout)
            && RawTensor::of(value, self.layout).requires_grad(self.getter) == self.requires_grad
    }
}

struct Spec {
    keys: u64,
    dtype: i32,
    /// -1 for a device without an index.  Tensors of the CPU have none, except for FakeTensors.
    device_index: i32,
    requires_grad: bool,
    sizes: Vec<i64>,
    /// Empty for layouts without strides.
    strides: Vec<i64>,
    has_strides: bool,
    torch: Torch,
    level: Level,
    /// The `TensorSpec`, `_tensor_holds` and the name `requires_grad`, for the slower levels.
    spec: Stored,
    oracle: Oracle,
    requires_grad_name: Stored,
}

fn dims(seq: Obj) -> Res<Vec<i64>> {
    let t = seq.own().to_tuple()?;
    t.get().tuple_items().map(|o| if o.is_none() { Ok(ANY) } else { o.own().as_i64() }).collect()
}

fn same(want: &[i64], have: &[i64]) -> bool {
    want.len() == have.len() && want.iter().zip(have).all(|(w, h)| w == h || *w == ANY)
}

impl Kind for Tensor {
    const COST: u8 = 3;

    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        let torch = torch(arg.py())?;
        let spec = arg.own();
        cx.keep(arg);
        let keys = spec.attr(c"keys")?.as_u64()?;
        let code = dtype_code(spec.attr(c"dtype")?.get())?;
        let device = spec.attr(c"device")?;
        let index = device.attr(c"index")?;
        let mut level = torch.level;
        if keys & torch.python_keys != 0 {
            level = level.min(Level::CAbi);
        }
        if code.is_none() {
            level = Level::Slow;
        }
        let (sizes, strides) = (dims(spec.attr(c"sizes")?.get())?, dims(spec.attr(c"strides")?.get())?);
        let pattern = torch.layout.zip(code).and_then(|(layout, dtype)| {
            let known = |dims: &[i64]| dims.iter().map(|d| (*d != ANY).then_some(*d)).collect::<Vec<_>>();
            Pattern::new(&PatternSpec { keys, dtype, sizes: &known(&sizes), strides: &known(&strides) }, layout)
        });
        let requires_grad = spec.attr(c"requires_grad")?.is_true()?;
        // If the class is held weakly, a `type_is` guard beside this one proves that no other class has its address.
        let class = cx.adopt(spec.attr(c"cls")?);
        let class =
            if class.get().is_weakref() { class.get().weakref_target().unwrap_or(Obj::none()) } else { class.get() };
        let parts = pattern.zip(torch.layout).zip(torch.requires_grad).filter(|_| level == Level::Offsets);
        let alike = parts.map(|((pattern, layout), getter)| {
            let made = || Rc::new(LayoutWords { pattern: pattern.clone(), requires_grad, layout, getter });
            cx.alike.entry((pattern.clone(), requires_grad)).or_insert_with(made).clone()
        });
        let spec = Box::new(Spec {
            keys,
            dtype: code.unwrap_or(-1),
            device_index: if index.get().is_none() { -1 } else { index.as_i64()? as i32 },
            requires_grad,
            sizes,
            has_strides: !strides.is_empty(),
            strides,
            torch,
            level,
            spec: arg.store(),
            oracle: cx.oracle(arg.py(), &registered_object::TENSOR_HOLDS)?,
            requires_grad_name: cx.adopt(crate::ffi::Owned::interned("requires_grad")?),
        });
        Ok(Tensor { class: class.store(), alike, device: spec.device_index >= 0, spec })
    }

    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        if value.class() != self.class.get() {
            return Ok(false);
        }
        if let Some(alike) = &self.alike {
            return Ok(alike.holds(value) && (!self.device || self.spec.same_device(value)));
        }
        let s = &*self.spec;
        match (s.level, s.torch.layout, s.torch.requires_grad) {
            (Level::Offsets, Some(layout), Some(requires_grad)) => {
                let t = RawTensor::of(value, layout);
                Ok(t.is_defined()
                    && t.keys() == s.keys
                    && t.dtype() == s.dtype
                    && s.same_shape(&t)
                    && t.requires_grad(requires_grad) == s.requires_grad
                    && (s.device_index < 0 || s.same_device(value)))
            }
            _ => Err(MayRunPython),
        }
    }
    fn ask(&self, value: &Owned) -> bool {
        match self.spec.level {
            Level::Slow => self.spec.oracle.agrees(value.get(), self.spec.spec.get()),
            Level::CAbi | Level::Offsets => self.spec.holds_by_abi(value),
        }
    }

    /// Called before the check, so the value may be any object.
    fn settle(&self, value: Obj, pins: &mut Pins) -> PinnedAnswer {
        let of_class = value.class() == self.class.get();
        let watch = |alike: &Rc<LayoutWords>| pins.tensor(value, &alike.pattern, alike.layout, self.device);
        if of_class && self.alike.as_ref().is_some_and(watch) {
            PinnedAnswer::ByWords
        } else {
            PinnedAnswer::Recheck
        }
    }
}

impl Spec {
    #[inline]
    fn same_shape(&self, t: &RawTensor) -> bool {
        if t.dim() != self.sizes.len() {
            return false;
        }
        let (sizes, strides) = t.sizes_strides();
        same(&self.sizes, sizes) && (!self.has_strides || same(&self.strides, strides))
    }

    fn same_device(&self, value: Obj) -> bool {
        let (Some(offset), Some(abi)) = (self.torch.handle, self.torch.abi) else { return false };
        abi.device_index(value.id() + offset) == Some(self.device_index)
    }

    /// Compares metadata through the C ABI.  Python decides whatever the C ABI cannot answer.
    fn holds_by_abi(&self, value: &Owned) -> bool {
        let (Some(offset), Some(abi)) = (self.torch.handle, self.torch.abi) else {
            return self.oracle.agrees(value.get(), self.spec.get());
        };
        let handle = value.get().id() + offset;
        let (Some(dtype), Some(sizes)) = (abi.dtype(handle), abi.sizes(handle)) else {
            return self.oracle.agrees(value.get(), self.spec.get());
        };
        if dtype != self.dtype || !same(&self.sizes, sizes) {
            return false;
        }
        let Some(layout) = self.torch.layout else {
            return self.oracle.agrees(value.get(), self.spec.get());
        };
        if RawTensor::of(value.get(), layout).keys() != self.keys {
            return false;
        }
        match (self.has_strides, abi.strides(handle)) {
            (false, _) => {}
            (true, Some(strides)) if same(&self.strides, strides) => {}
            (true, Some(_)) => return false,
            (true, None) => return self.oracle.agrees(value.get(), self.spec.get()),
        }
        let requires_grad = or_false(
            value.getattr(self.requires_grad_name.get()).and_then(|v| v.is_true()).map(|v| v == self.requires_grad),
        );
        requires_grad && self.same_device(value.get())
    }
}
