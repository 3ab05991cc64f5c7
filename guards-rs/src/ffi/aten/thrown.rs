//! Calls a C++ function that may throw.
//!
//! A C++ exception that reaches Rust's `catch_unwind` ends the process.  Not every supported version of torch has a
//! function in its C ABI that wraps a tensor.  So the C++ function is called by a small frame written in assembly,
//! whose personality routine stops each exception.  On platforms other than x86-64 Linux the function is called
//! directly.
//!
//! Example: if memory is short, `THPVariable_Wrap` throws `python_error` with a Python exception set.

use std::ffi::c_void;

/// `function(argument)`; None if it throws.
///
/// # Safety
/// The function takes and returns a word.
pub unsafe fn caught<T>(
    function: unsafe extern "C" fn(*mut c_void) -> *mut T,
    argument: *mut c_void,
) -> Option<*mut T> {
    // SAFETY: the caller's promise.
    unsafe { frame::caught(function, argument) }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod frame {
    use crate::ffi::torch::named;
    use std::ffi::{c_int, c_void};
    use std::ptr::null_mut;

    // unwind.h, the C++ ABI that GCC and Clang share: actions and results of a personality routine.
    const SEARCHES: c_int = 1;
    const HANDLES: c_int = 4;
    const FOUND: c_int = 6;
    const INSTALL: c_int = 7;
    const GO_ON: c_int = 8;
    /// The register that holds the exception in a landing pad: rax.
    const RAX: c_int = 0;

    extern "C" {
        fn _Unwind_SetGR(context: *mut c_void, register: c_int, value: usize);
        fn _Unwind_SetIP(context: *mut c_void, at: usize);
        fn _Unwind_DeleteException(exception: *mut c_void);
        /// `function(argument)`; if it throws, the exception is written to `thrown`.
        fn pyc_call_caught(function: *const c_void, argument: *mut c_void, thrown: *mut *mut c_void) -> *mut c_void;
        fn pyc_call_landed();
    }

    std::arch::global_asm!(
        ".pushsection .text.pyc_call_caught,\"ax\",@progbits",
        ".hidden pyc_call_caught",
        ".globl pyc_call_caught",
        ".type pyc_call_caught, @function",
        "pyc_call_caught:",
        ".cfi_startproc",
        ".cfi_personality 0x1b, {personality}", // relative to this place, four bytes
        "push rbx",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbx, -16",
        "mov rbx, rdx",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "jmp 2f",
        ".hidden pyc_call_landed",
        ".globl pyc_call_landed",
        "pyc_call_landed:",
        "mov [rbx], rax",
        "xor eax, eax",
        "2:",
        "pop rbx",
        ".cfi_def_cfa_offset 8",
        "ret",
        ".cfi_endproc",
        ".size pyc_call_caught, . - pyc_call_caught",
        ".popsection",
        personality = sym personality,
    );

    /// Personality routine of the frame above, which has one landing pad.  Forced unwinding (the end of a thread)
    /// continues.
    unsafe extern "C" fn personality(
        _version: c_int,
        actions: c_int,
        _class: u64,
        exception: *mut c_void,
        context: *mut c_void,
    ) -> c_int {
        if actions & SEARCHES != 0 {
            return FOUND;
        }
        if actions & HANDLES == 0 {
            return GO_ON;
        }
        // SAFETY: the unwinder's own arguments; the frame's other registers are as they were at the call.
        unsafe {
            _Unwind_SetGR(context, RAX, exception as usize);
            _Unwind_SetIP(context, pyc_call_landed as *const () as usize);
        }
        INSTALL
    }

    pub unsafe fn caught<T>(
        function: unsafe extern "C" fn(*mut c_void) -> *mut T,
        argument: *mut c_void,
    ) -> Option<*mut T> {
        let mut thrown = null_mut();
        // SAFETY: the caller's promise; a function is an address.
        let result = unsafe { pyc_call_caught(function as *const c_void, argument, &mut thrown) };
        if thrown.is_null() {
            return Some(result.cast());
        }
        // SAFETY: an exception that is caught nowhere else.
        unsafe { end(thrown) };
        None
    }

    /// Ends an exception, as at the end of `catch (...)`.
    #[cold]
    unsafe fn end(exception: *mut c_void) {
        type Begin = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
        type End = unsafe extern "C" fn();
        // SAFETY: functions of the C++ ABI; without them exceptions are not counted.
        unsafe {
            match (named("__cxa_begin_catch"), named("__cxa_end_catch")) {
                (Some(begin), Some(end)) => {
                    std::mem::transmute::<usize, Begin>(begin)(exception);
                    std::mem::transmute::<usize, End>(end)();
                }
                _ => _Unwind_DeleteException(exception),
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        #[cfg_attr(miri, ignore)] // assembly
        fn a_function_that_throws_gives_nothing() {
            #[repr(C)]
            struct Exception {
                class: u64,
                cleanup: unsafe extern "C" fn(c_int, *mut c_void),
                private: [u64; 2],
            }
            extern "C-unwind" {
                fn _Unwind_RaiseException(exception: *mut c_void) -> c_int;
            }
            unsafe extern "C" fn cleanup(_: c_int, exception: *mut c_void) {
                // SAFETY: the box that `throws` created.
                unsafe { drop(Box::from_raw(exception.cast::<Exception>())) };
            }
            unsafe extern "C" fn doubles(word: *mut c_void) -> *mut u8 {
                (word as usize * 2) as *mut u8
            }
            unsafe extern "C-unwind" fn throws(_: *mut c_void) -> *mut u8 {
                let exception = Exception { class: u64::from_be_bytes(*b"TESTTEST"), cleanup, private: [0; 2] };
                // SAFETY: an exception that its cleanup frees.
                unsafe { _Unwind_RaiseException(Box::into_raw(Box::new(exception)).cast()) };
                null_mut()
            }
            // SAFETY: functions of a word; the `-unwind` ABI only allows unwinding, which `caught` stops.
            unsafe {
                let throws = std::mem::transmute::<
                    unsafe extern "C-unwind" fn(*mut c_void) -> *mut u8,
                    unsafe extern "C" fn(*mut c_void) -> *mut u8,
                >(throws);
                for word in [1usize, 20, 300] {
                    assert_eq!(caught(doubles, word as *mut c_void), Some((2 * word) as *mut u8));
                    assert_eq!(caught(throws, word as *mut c_void), None);
                }
            }
        }
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod frame {
    use std::ffi::c_void;

    pub unsafe fn caught<T>(
        function: unsafe extern "C" fn(*mut c_void) -> *mut T,
        argument: *mut c_void,
    ) -> Option<*mut T> {
        // SAFETY: the caller's promise.
        Some(unsafe { function(argument) })
    }
}
