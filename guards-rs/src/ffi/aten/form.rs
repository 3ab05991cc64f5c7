//! The form of a tensor: the properties that guards compare, and that kernels rely on besides an address.
//!
//! In: a `Handle`.  Out: a `Form`: sizes, strides, dtype and device.  Printed as `float32[2, 3] with strides [3, 1] on
//! cpu`.

use std::fmt;

use smallvec::SmallVec;

use super::symbols::{api, GetWords};
use super::{checked, code_of, Device, Handle, Outcome};

#[derive(Debug, Clone)]
pub struct Form {
    /// Sizes, then strides.
    words: SmallVec<[i64; 8]>,
    dtype: i32,
    device: Device,
}

impl Form {
    pub fn of(handle: Handle) -> Outcome<Form> {
        let (api, dims) = (api()?, handle.dim() as usize);
        let mut index = 0;
        // SAFETY: a live handle and room for the result.
        checked(unsafe { (api.get_device_index)(handle.0, &mut index) }, "aoti_torch_get_device_index")?;
        let mut words = SmallVec::new();
        let mut copy = |get: GetWords, call: &str| -> Outcome<()> {
            let mut found = std::ptr::null();
            // SAFETY: as above; the result is `dims` words, which live until the tensor is changed.
            unsafe {
                checked(get(handle.0, &mut found), call)?;
                (0..dims).for_each(|dim| words.push(*found.add(dim)));
            }
            Ok(())
        };
        copy(api.get_sizes, "aoti_torch_get_sizes")?;
        copy(api.get_strides, "aoti_torch_get_strides")?;
        Ok(Form { words, dtype: handle.dtype(), device: Device { kind: handle.device_kind(), index } })
    }

    #[cfg(test)]
    fn new(sizes: &[i64], strides: &[i64], dtype: i32, device: Device) -> Form {
        Form { words: sizes.iter().chain(strides).copied().collect(), dtype, device }
    }

    fn parts(&self) -> (&[i64], &[i64]) {
        self.words.split_at(self.words.len() / 2)
    }

    /// Whether code generated for tensors of this form reads the other form correctly.  Strides of a dimension of size
    /// 1, and of a tensor without elements, are never read.
    pub fn fits(&self, other: &Form) -> bool {
        let ((sizes, strides), (sizes2, strides2)) = (self.parts(), other.parts());
        let same_stride = |((size, a), b): ((&i64, &i64), &i64)| *size == 1 || a == b;
        self.dtype == other.dtype
            && self.device == other.device
            && sizes == sizes2
            && (sizes.contains(&0) || sizes.iter().zip(strides).zip(strides2).all(same_stride))
    }
}

const DTYPES: &[&str] = &[
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "complex32",
    "complex64",
    "complex128",
];
const DEVICES: &[&str] = &["cpu", "cuda", "meta", "xpu", "mps", "privateuse1"];

/// The name whose code in torch's C ABI is `code`.
fn name_of(prefix: &str, names: &[&'static str], code: i32) -> Option<&'static str> {
    names.iter().find(|name| code_of(&format!("{prefix}{name}")) == Some(code)).copied()
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sizes, strides) = self.parts();
        match name_of("aoti_torch_dtype_", DTYPES, self.dtype) {
            Some(dtype) => f.write_str(dtype)?,
            None => write!(f, "dtype {}", self.dtype)?,
        }
        write!(f, "{sizes:?} with strides {strides:?} on ")?;
        match name_of("aoti_torch_device_type_", DEVICES, self.device.kind) {
            Some("cpu") => f.write_str("cpu"),
            Some(device) => write!(f, "{device}:{}", self.device.index),
            None => write!(f, "device {}:{}", self.device.kind, self.device.index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Device = Device { kind: 0, index: 0 };

    #[test]
    fn another_stride_of_a_used_dimension_does_not_fit() {
        let form = Form::new(&[2, 3], &[3, 1], 6, HOST);
        assert!(form.fits(&form.clone()));
        assert!(!form.fits(&Form::new(&[2, 3], &[1, 2], 6, HOST)));
        assert!(!form.fits(&Form::new(&[3, 2], &[2, 1], 6, HOST)));
    }

    #[test]
    fn strides_that_nothing_reads_do_not_matter() {
        let row = Form::new(&[1, 3], &[3, 1], 6, HOST);
        assert!(row.fits(&Form::new(&[1, 3], &[77, 1], 6, HOST)));
        assert!(!row.fits(&Form::new(&[1, 3], &[3, 2], 6, HOST)));
        let none = Form::new(&[0, 3], &[3, 1], 6, HOST);
        assert!(none.fits(&Form::new(&[0, 3], &[9, 9], 6, HOST)));
    }

    #[test]
    fn dtype_device_and_rank_are_parts_of_the_form() {
        let form = Form::new(&[4], &[1], 6, HOST);
        assert!(!form.fits(&Form::new(&[4], &[1], 7, HOST)));
        assert!(!form.fits(&Form::new(&[4], &[1], 6, Device { kind: 1, index: 0 })));
        assert!(!form.fits(&Form::new(&[4, 1], &[1, 1], 6, HOST)));
        assert!(!form.fits(&Form::new(&[], &[], 6, HOST)));
    }
}
