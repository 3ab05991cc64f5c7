//! Calls of operators: functions of the C ABI, and the dispatcher with its argument encoding.

use std::ffi::{c_void, CStr};

use super::handle::{Handle, Tensor};
use super::symbols::{self, api};
use super::{checked, Failure, Outcome};
use crate::ffi::torch::named;

/// A function of the C ABI that takes machine words and doubles and returns an error code.
#[derive(Clone, Copy)]
pub struct Shim {
    call: symbols::ShimFn,
    name: &'static str,
}

pub const SHIM_WORDS: usize = 24;
pub const SHIM_FLOATS: usize = 8;

impl Shim {
    /// None if the loaded torch does not export the function, or if `call` does not support the calling convention.
    pub fn find(name: &'static str) -> Option<Shim> {
        if !cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))) {
            return None;
        }
        let address = named(name)?;
        // SAFETY: the address of a C function; see `call` for the signature.
        let call = unsafe { std::mem::transmute::<usize, symbols::ShimFn>(address) };
        Some(Shim { call, name })
    }

    /// Calls the function with `words` as its pointer and integer arguments in order and `floats` as its doubles.
    ///
    /// The System V x86-64 and AAPCS64 conventions pass integers and doubles in separate register files.  Further integers
    /// go to 8-byte stack slots, and the caller cleans up.  So surplus arguments are harmless.
    pub fn call(self, words: &[usize], floats: &[f64]) -> Outcome<()> {
        if words.len() > SHIM_WORDS || floats.len() > SHIM_FLOATS {
            return Err(Failure(format!("{}: too many arguments", self.name)));
        }
        let mut w = [0usize; SHIM_WORDS];
        w[..words.len()].copy_from_slice(words);
        let mut f = [0f64; SHIM_FLOATS];
        f[..floats.len()].copy_from_slice(floats);
        // SAFETY: the caller (plan/aten.rs) encodes the arguments by a schema.  It equals, as a string, the schema that
        // this function was declared for.  Pointers refer to memory that lives during the call.
        let code = unsafe {
            (self.call)(
                w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13], w[14], w[15],
                w[16], w[17], w[18], w[19], w[20], w[21], w[22], w[23], f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7],
            )
        };
        checked(code, self.name)
    }
}

/// An owned handle from a word that a shim or the dispatcher returned; None for null.
pub fn adopt(word: usize) -> Option<Tensor> {
    (word != 0).then_some(Tensor(word as *mut c_void))
}

/// The argument stack of one dispatcher call.  `call` consumes the allocations of `push`.
pub struct Stack {
    values: Vec<u64>,
}

impl Stack {
    pub fn with_capacity(n: usize) -> Stack {
        Stack { values: Vec::with_capacity(n) }
    }

    pub fn push(&mut self, value: u64) {
        self.values.push(value);
    }

    /// Calls the operator.  Its results are then the first `n_results` words of the stack.
    pub fn call(mut self, name: &CStr, overload: &CStr, n_results: usize) -> Outcome<Vec<u64>> {
        let api = api()?;
        self.values.resize(self.values.len().max(n_results), 0);
        let stack = self.values.as_mut_ptr();
        // SAFETY: the stack holds one value for each argument, encoded by the schema (plan/aten.rs), and has room for
        // the results; both names are NUL-terminated.
        let code = match (api.call_dispatcher_versioned, api.call_dispatcher) {
            // SAFETY: as above.
            (Some(call), _) => unsafe { call(name.as_ptr(), overload.as_ptr(), stack, api.abi_version) },
            // SAFETY: as above.
            (None, Some(call)) => unsafe { call(name.as_ptr(), overload.as_ptr(), stack) },
            (None, None) => return Err(Failure("this torch exports no aoti_torch_call_dispatcher".into())),
        };
        checked(code, "aoti_torch_call_dispatcher")?;
        self.values.truncate(n_results);
        Ok(self.values)
    }
}

/// Whether arguments of list type can be encoded.
pub fn has_lists() -> bool {
    api().is_ok_and(|api| api.list_new.is_some() && api.list_push.is_some())
}

pub fn has_dispatcher() -> bool {
    api().is_ok_and(|api| api.call_dispatcher_versioned.is_some() || api.call_dispatcher.is_some())
}

/// A new reference to the tensor as a stack value.
pub fn encode_tensor(handle: Handle) -> Outcome<u64> {
    Ok(handle.to_owned()?.into_raw() as u64)
}

/// A present optional value: a heap cell that the callee frees.
pub fn encode_some(value: u64) -> Outcome<u64> {
    let mut cell: *mut u64 = std::ptr::null_mut();
    match api()?.new_stable_ivalue {
        // SAFETY: room for the pointer.
        Some(new) => checked(unsafe { new(&mut cell) }, "torch_new_stable_ivalue")?,
        // SAFETY: before 2.13 the callee frees with `delete`, which is `free` in glibc's libstdc++.
        None => cell = unsafe { libc::malloc(8) }.cast(),
    }
    if cell.is_null() {
        return Err(Failure("out of memory".into()));
    }
    // SAFETY: a fresh cell of 8 bytes.
    unsafe { cell.write(value) };
    Ok(cell as u64)
}

/// A list of encoded values; the callee frees it.
pub fn encode_list(values: impl ExactSizeIterator<Item = Outcome<u64>>) -> Outcome<u64> {
    let api = api()?;
    let (Some(new), Some(push)) = (api.list_new, api.list_push) else {
        return Err(Failure("this torch cannot encode lists".into()));
    };
    let mut list = std::ptr::null_mut();
    // SAFETY: room for the new list.
    checked(unsafe { new(values.len(), &mut list) }, "torch_new_list_reserve_size")?;
    for value in values {
        // SAFETY: the list created above, not yet given away.
        checked(unsafe { push(list, value?) }, "torch_list_push_back")?;
    }
    Ok(list as u64)
}

/// A string; the callee frees it.
pub fn encode_string(text: &CStr) -> Outcome<u64> {
    let new = api()?.string_new.ok_or_else(|| Failure("this torch cannot encode strings".into()))?;
    let mut out = std::ptr::null_mut();
    // SAFETY: the text and its length; room for the new string.
    checked(unsafe { new(text.as_ptr(), text.to_bytes().len(), &mut out) }, "torch_new_string_handle")?;
    Ok(out as u64)
}

pub fn has_strings() -> bool {
    api().is_ok_and(|api| api.string_new.is_some())
}

/// The tensors of a list that an operator returned; frees the list.
pub fn decode_tensor_list(value: u64) -> Outcome<Vec<Option<Tensor>>> {
    let api = api()?;
    let (Some(size), Some(get), Some(delete)) = (api.list_size, api.list_get, api.list_delete) else {
        return Err(Failure("this torch cannot decode lists".into()));
    };
    let list = value as *mut c_void;
    let mut n = 0usize;
    // SAFETY: a list that the dispatcher returned, owned by us until the delete below.
    checked(unsafe { size(list, &mut n) }, "torch_list_size")?;
    let mut out = Vec::with_capacity(n);
    for i in 0..n {
        let mut word = 0u64;
        // SAFETY: as above, `i` in range.
        checked(unsafe { get(list, i, &mut word) }, "torch_list_get_item")?;
        out.push(adopt(word as usize));
    }
    // SAFETY: deleted once; the elements were adopted above.
    checked(unsafe { delete(list) }, "torch_delete_list")?;
    Ok(out)
}
