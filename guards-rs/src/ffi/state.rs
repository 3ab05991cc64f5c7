//! torch's thread-local and global state, read through exported C++ symbols: a few words for each call.
//!
//! Two words are torch's own summary of a thread: the included and the excluded dispatch keys.  They change with
//! dispatch modes, transforms of `torch.func`, tracing, autocast, inference mode, and all other state that affects
//! dispatch.

use super::object::{import, Immortal, Obj, Owned, Raised, Res};
use super::torch::{load, resolve, symbol};
use std::cell::Cell;
use std::ffi::{c_char, CStr};

type Flag = unsafe extern "C" fn() -> bool;
type Byte = unsafe extern "C" fn() -> c_char;
type OfContext = unsafe extern "C" fn(usize) -> bool;

/// A flag of torch's global context.  `At` is its address if the code of its getter reveals it; otherwise `By` is the
/// getter.
#[derive(Clone, Copy)]
enum ContextFlag {
    At(usize),
    By(OfContext, usize),
    /// This torch has no such flag.
    Never,
}

impl ContextFlag {
    fn find(name: &CStr, context: usize) -> ContextFlag {
        let Some(getter) = symbol(name) else { return ContextFlag::Never };
        // `movzbl offset(%rdi), %eax; ret`: the getter only reads one byte of its object.
        let code: [u8; 8] = load(getter);
        match code {
            [0x0f, 0xb6, 0x87, a, b, c, d, 0xc3] if cfg!(target_arch = "x86_64") => {
                ContextFlag::At(context.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]) as isize))
            }
            // SAFETY: the names below are names of `bool Context::…() const` in the known versions (`torch::symbol`).
            _ => ContextFlag::By(unsafe { std::mem::transmute::<usize, OfContext>(getter) }, context),
        }
    }

    #[inline]
    fn read(self) -> bool {
        match self {
            ContextFlag::At(address) => load::<u8>(address) != 0,
            // SAFETY: a getter of a flag, on the static context.
            ContextFlag::By(getter, context) => unsafe { getter(context) },
            ContextFlag::Never => false,
        }
    }
}

// Deterministic algorithms, and the kernels that `scaled_dot_product_attention` may use.
const CONTEXT_FLAGS: [&CStr; 8] = [
    c"_ZNK2at7Context23deterministicAlgorithmsEv",
    c"_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv",
    c"_ZNK2at7Context36deterministicFillUninitializedMemoryEv",
    c"_ZNK2at7Context19userEnabledFlashSDPEv",
    c"_ZNK2at7Context26userEnabledMemEfficientSDPEv",
    c"_ZNK2at7Context18userEnabledMathSDPEv",
    c"_ZNK2at7Context19userEnabledCuDNNSDPEv",
    c"_ZNK2at7Context25userEnabledOverrideableSDPEv",
];

/// Whether a level of forward-mode AD is open.  An older torch exposes this only as a variable of a Python module.
#[derive(Clone, Copy)]
enum ForwardLevel {
    By(Flag),
    In(Immortal, Immortal),
}

impl ForwardLevel {
    fn find() -> Res<ForwardLevel> {
        let native =
            || Some(ForwardLevel::By(resolve!(c"_ZN5torch8autograd14ForwardADLevel13has_any_levelEv" as Flag)));
        native().map_or_else(ForwardLevel::in_python, Ok)
    }

    fn in_python() -> Res<ForwardLevel> {
        let module = import(c"torch.autograd.forward_ad")?;
        let (variables, name) = (module.get().instance_dict().ok_or(Raised)?, Owned::interned("_current_level")?);
        // Never dropped, because torch never drops its modules.
        Ok(ForwardLevel::In(Immortal::new(variables.own()), Immortal::new(name)))
    }

    #[inline]
    fn is_open(self) -> bool {
        match self {
            // SAFETY: a getter without preconditions.
            ForwardLevel::By(flag) => unsafe { flag() },
            ForwardLevel::In(variables, name) => {
                let level = variables.get().dict_find(name.get(), 0).ok().flatten();
                level.and_then(Obj::exact_i64) != Some(-1)
            }
        }
    }
}

/// Saved-tensor hooks of a thread: a deque in its state, empty if its two iterators are equal.
#[derive(Clone, Copy)]
struct Hooks {
    state: unsafe extern "C" fn() -> usize,
}

impl Hooks {
    // libstdc++: a deque starts with its map and the map's size, followed by an iterator of four words and another
    // iterator.
    const FIRST: usize = 16;
    const LAST: usize = 48;

    fn are_active_at(state: usize) -> bool {
        load::<usize>(state + Self::FIRST) != load::<usize>(state + Self::LAST)
    }

    /// None if the deque does not have the expected layout.
    fn find() -> Option<Hooks> {
        type State = unsafe extern "C" fn() -> usize;
        let hooks = Hooks { state: resolve!(c"_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv" as State) };
        // SAFETY: returns a reference to the calling thread's state.
        let here = unsafe { (hooks.state)() };
        let look = || -> Res<[bool; 3]> {
            let autograd = import(c"torch._C._autograd")?;
            let top = autograd.attr(c"_top_saved_tensors_default_hooks")?;
            let before = Self::are_active_at(here);
            if !top.call(&[Owned::bool(true).get()], None)?.get().is_none() {
                return Err(Raised);
            }
            autograd.attr(c"_push_saved_tensors_default_hooks")?.call(&[top.get(), top.get()], None)?;
            let within = Self::are_active_at(here);
            autograd.attr(c"_pop_saved_tensors_default_hooks")?.call(&[], None)?;
            Ok([before, within, Self::are_active_at(here)])
        };
        let seen = look().unwrap_or_else(|Raised| {
            super::object::clear_error();
            [true; 3]
        });
        (seen == [false, true, false]).then_some(hooks)
    }
}

/// Addresses of this thread's own state.
#[derive(Clone, Copy)]
struct Thread {
    /// The address of the included dispatch keys, followed by the excluded ones.
    keys: usize,
    hooks: usize,
}

thread_local! {
    static THREAD: Cell<Thread> = const { Cell::new(Thread { keys: 0, hooks: 0 }) };
}

/// The getters of all parts of the state.
#[derive(Clone, Copy)]
pub struct StateSymbols {
    grad_mode: Flag,
    autocast_dtype: unsafe extern "C" fn(i8) -> c_char,
    autocast_cache: Flag,
    default_dtype: Byte,
    context: [ContextFlag; CONTEXT_FLAGS.len()],
    anomaly: usize,
    forward_level: ForwardLevel,
    hooks: Hooks,
    function_modes: unsafe extern "C" fn() -> i64,
    function_disabled: Byte,
}

pub type Words = [u64; 5];

impl StateSymbols {
    /// `by_offset`: false selects the slower access, for tests.
    pub fn find(by_offset: bool) -> Option<Self> {
        type Count = unsafe extern "C" fn() -> i64;
        let context = resolve!(c"_ZN2at13globalContextEv" as unsafe extern "C" fn() -> usize);
        // SAFETY: `at::Context& globalContext()` has no preconditions; the context is a static.
        let context = unsafe { context() };
        symbol(KEYS)?;
        let level = if by_offset { ForwardLevel::find() } else { ForwardLevel::in_python() };
        Some(StateSymbols {
            grad_mode: resolve!(c"_ZN3c108GradMode10is_enabledEv" as Flag),
            autocast_dtype: resolve!(
                c"_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE" as unsafe extern "C" fn(i8) -> c_char
            ),
            autocast_cache: resolve!(c"_ZN2at8autocast25is_autocast_cache_enabledEv" as Flag),
            default_dtype: resolve!(c"_ZN3c1031get_default_dtype_as_scalartypeEv" as Byte),
            context: CONTEXT_FLAGS.map(|name| ContextFlag::find(name, context)),
            anomaly: symbol(c"_ZN5torch8autograd11AnomalyMode8_enabledE")?,
            forward_level: level.map_err(|Raised| super::object::clear_error()).ok()?,
            hooks: Hooks::find()?,
            function_modes: resolve!(c"_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv" as Count),
            function_disabled: resolve!(c"_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv" as Byte),
        })
    }

    #[cold]
    fn find_thread(&self) -> Thread {
        // SAFETY: dlsym returns the address of a thread-local variable in the calling thread; so does the getter.
        let found = Thread { keys: symbol(KEYS).unwrap_or(0), hooks: unsafe { (self.hooks.state)() } };
        THREAD.with(|t| t.set(found));
        found
    }

    /// The state packed into words: included keys, excluded keys, flags, dtypes, and the number of function modes.
    #[inline]
    pub fn read(&self) -> Words {
        const CPU: i8 = 0;
        const CUDA: i8 = 1;
        let mut thread = THREAD.with(Cell::get);
        if thread.keys == 0 {
            thread = self.find_thread();
        }
        // SAFETY: getters of thread-local or static state without preconditions.  A mangled name fixes the parameters,
        // but no return type; the known versions (`torch::symbol`) declare these.
        unsafe {
            let own = [
                (self.grad_mode)(),
                (self.autocast_cache)(),
                load::<u8>(self.anomaly) != 0,
                self.forward_level.is_open(),
                Hooks::are_active_at(thread.hooks),
            ];
            let bytes = [
                (self.autocast_dtype)(CPU),
                (self.autocast_dtype)(CUDA),
                (self.default_dtype)(),
                (self.function_disabled)(),
            ];
            let flags = own.into_iter().chain(self.context.map(ContextFlag::read));
            [
                load(thread.keys),
                load(thread.keys + 8),
                flags.fold(0, |w, f| w << 1 | u64::from(f)),
                bytes.iter().fold(0, |w, b| w << 8 | u64::from(*b as u8)),
                (self.function_modes)() as u64,
            ]
        }
    }

    /// Whether words describe the whole state.  A function mode may be the default device, and hooks may be torch's
    /// own.
    #[inline]
    pub fn are_complete(words: &Words) -> bool {
        words[4] == 0 && words[2] & 1 << CONTEXT_FLAGS.len() == 0
    }
}

const KEYS: &CStr = c"_ZN3c104impl26raw_local_dispatch_key_setE";
