//! The driver of NVIDIA GPUs, `libcuda.so.1`, opened at run time: modules, functions, CUDA graphs and their launches.
//!
//! In: a binary from Triton's compiler, the name of its function, a device.  Out: `Function::launch`, which starts it
//! on torch's current stream.  `Graph::launch` starts a CUDA graph that torch has recorded, or `Driver::record`.  Contexts
//! are the primary contexts of the devices, as in torch.  Modules are never unloaded, because their kernels may still run.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Mutex;

use super::aten::{Failure, Outcome};

type Raw = *mut c_void;
type Code = c_int;

/// Shared memory that a program can use without an attribute.
const PLAIN_SHARED: u32 = 48 << 10;
const MAX_DYNAMIC_SHARED: c_int = 8; // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
const NON_BLOCKING: c_uint = 1; // CU_STREAM_NON_BLOCKING
const RELAXED: c_int = 2; // CU_STREAM_CAPTURE_MODE_RELAXED

/// Declares the table of the driver's functions.
macro_rules! table {
    ($($field:ident: $ty:ty = $name:literal,)*) => {
        struct Calls { $($field: $ty,)* }

        fn resolve(library: Raw) -> Outcome<Calls> {
            Ok(Calls { $($field: {
                let address = find(library, $name).ok_or_else(|| Failure(format!("the GPU's driver has no {:?}", $name)))?;
                // SAFETY: the driver's interface is stable: a name with its version suffix fixes the signature.
                unsafe { std::mem::transmute::<Raw, $ty>(address) }
            },)* })
        }
    };
}

type LaunchKernel =
    unsafe extern "C" fn(Raw, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Raw, *mut Raw, *mut Raw) -> Code;

table! {
    init: unsafe extern "C" fn(c_uint) -> Code = c"cuInit",
    device_get: unsafe extern "C" fn(*mut c_int, c_int) -> Code = c"cuDeviceGet",
    retain_context: unsafe extern "C" fn(*mut Raw, c_int) -> Code = c"cuDevicePrimaryCtxRetain",
    current_context: unsafe extern "C" fn(*mut Raw) -> Code = c"cuCtxGetCurrent",
    push_context: unsafe extern "C" fn(Raw) -> Code = c"cuCtxPushCurrent_v2",
    pop_context: unsafe extern "C" fn(*mut Raw) -> Code = c"cuCtxPopCurrent_v2",
    load_module: unsafe extern "C" fn(*mut Raw, *const c_void) -> Code = c"cuModuleLoadData",
    get_function: unsafe extern "C" fn(*mut Raw, Raw, *const c_char) -> Code = c"cuModuleGetFunction",
    set_attribute: unsafe extern "C" fn(Raw, c_int, c_int) -> Code = c"cuFuncSetAttribute",
    launch: LaunchKernel = c"cuLaunchKernel",
    launch_graph: unsafe extern "C" fn(Raw, Raw) -> Code = c"cuGraphLaunch",
    create_stream: unsafe extern "C" fn(*mut Raw, c_uint) -> Code = c"cuStreamCreate",
    exchange_mode: unsafe extern "C" fn(*mut c_int) -> Code = c"cuThreadExchangeStreamCaptureMode",
    begin_capture: unsafe extern "C" fn(Raw, c_int) -> Code = c"cuStreamBeginCapture_v2",
    end_capture: unsafe extern "C" fn(Raw, *mut Raw) -> Code = c"cuStreamEndCapture",
    instantiate: unsafe extern "C" fn(*mut Raw, Raw, u64) -> Code = c"cuGraphInstantiateWithFlags",
    destroy_graph: unsafe extern "C" fn(Raw) -> Code = c"cuGraphDestroy",
    destroy_executable: unsafe extern "C" fn(Raw) -> Code = c"cuGraphExecDestroy",
    is_capturing: unsafe extern "C" fn(Raw, *mut c_int) -> Code = c"cuStreamIsCapturing",
    error_name: unsafe extern "C" fn(Code, *mut *const c_char) -> Code = c"cuGetErrorName",
    error_text: unsafe extern "C" fn(Code, *mut *const c_char) -> Code = c"cuGetErrorString",
}

/// `aoti_torch_get_current_cuda_stream`.
type CurrentStream = unsafe extern "C" fn(i32, *mut Raw) -> i32;
const CURRENT_STREAM: &CStr = c"aoti_torch_get_current_cuda_stream";

pub struct Driver {
    calls: Calls,
    stream: CurrentStream,
    devices: Mutex<Devices>,
    /// The library of a test's driver, which has cuBLASLt's functions, too.
    of_test: Option<usize>,
}

#[derive(Default)]
struct Devices {
    contexts: HashMap<i32, usize>,
    /// Modules by binary and device.
    modules: HashMap<(Box<[u8]>, i32), usize>,
    /// By device: the stream of recordings.  It never runs anything.
    recorders: HashMap<i32, usize>,
}

/// The open driver.  Never closed, because functions refer to it.
static OPEN: AtomicPtr<Driver> = AtomicPtr::new(std::ptr::null_mut());

/// The address of a library's function.
pub fn find(library: Raw, name: &CStr) -> Option<Raw> {
    // SAFETY: a handle from dlopen and a C string.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

fn open_library(path: &CStr) -> Option<Raw> {
    // SAFETY: dlopen of the driver, which the CUDA runtime has loaded, or loads, as well.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    (!library.is_null()).then_some(library)
}

/// Opens the driver at `path`.  torch's library reports the current stream, unless the driver's library (of a test)
/// does.
fn open(path: &CStr, of_test: bool) -> Outcome<Driver> {
    let library = open_library(path).ok_or_else(|| Failure(format!("no GPU driver: {}", super::aten::dl_error())))?;
    let calls = resolve(library)?;
    let torch = || super::torch::symbol(CURRENT_STREAM).map(|address| address as Raw);
    let stream = find(library, CURRENT_STREAM)
        .or_else(torch)
        .ok_or_else(|| Failure("the loaded torch does not export its CUDA streams".into()))?;
    // SAFETY: torch's C ABI declares `int32_t f(int32_t device, void** stream)`.
    let stream = unsafe { std::mem::transmute::<Raw, CurrentStream>(stream) };
    let of_test = of_test.then_some(library as usize);
    let driver = Driver { calls, stream, devices: Mutex::default(), of_test };
    // SAFETY: the first call of the driver; repeated calls do nothing.
    driver.checked(unsafe { (driver.calls.init)(0) }, "cuInit")?;
    Ok(driver)
}

/// The driver, opened at the first use.
pub fn driver() -> Outcome<&'static Driver> {
    let now = OPEN.load(Ordering::Acquire);
    // SAFETY: the target of OPEN is never freed.
    if let Some(driver) = unsafe { now.as_ref() } {
        return Ok(driver);
    }
    let _ = OPEN.compare_exchange(
        now,
        Box::into_raw(Box::new(open(c"libcuda.so.1", false)?)),
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    // SAFETY: as above; another thread may have been first, and ours is then leaked.
    unsafe { OPEN.load(Ordering::Acquire).as_ref() }.ok_or_else(|| Failure("no GPU driver".into()))
}

/// Builds later plans for the driver at `path`, which belongs to a test.  None selects the machine's own driver.
pub fn use_driver(path: Option<&str>) -> Outcome<()> {
    let driver = match path.map(CString::new) {
        None => std::ptr::null_mut(),
        Some(Ok(path)) => Box::into_raw(Box::new(open(&path, true)?)),
        Some(Err(_)) => return Err(Failure("a path with a NUL".into())),
    };
    OPEN.store(driver, Ordering::Release);
    Ok(())
}

impl Driver {
    fn checked(&self, code: Code, call: &str) -> Outcome<()> {
        if code == 0 {
            return Ok(());
        }
        Err(Failure(format!("{call}: {}", self.described(code))))
    }

    #[cold]
    fn described(&self, code: Code) -> String {
        let text = |of: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text = std::ptr::null();
            // SAFETY: the result is null, or a string that the driver keeps for ever.
            unsafe { (of(code, &mut text) == 0 && !text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy()) }
        };
        let name = text(self.calls.error_name).unwrap_or_else(|| format!("error {code} of the GPU's driver").into());
        text(self.calls.error_text).map_or_else(|| name.to_string(), |text| format!("{name} ({text})"))
    }

    /// The primary context of a device, retained for the life of the process.
    fn context(&self, devices: &mut Devices, device: i32) -> Outcome<usize> {
        if let Some(context) = devices.contexts.get(&device) {
            return Ok(*context);
        }
        let (mut ordinal, mut context) = (0, std::ptr::null_mut());
        // SAFETY: room for each result.
        self.checked(unsafe { (self.calls.device_get)(&mut ordinal, device) }, "cuDeviceGet")?;
        // SAFETY: as above.
        let code = unsafe { (self.calls.retain_context)(&mut context, ordinal) };
        self.checked(code, "cuDevicePrimaryCtxRetain")?;
        devices.contexts.insert(device, context as usize);
        Ok(context as usize)
    }

    /// Makes a context current until the guard is dropped.  Free if the context is already current.
    #[inline]
    fn enter(&self, context: usize) -> Outcome<Option<ContextScope<'_>>> {
        let mut now = std::ptr::null_mut();
        // SAFETY: room for the result.
        let code = unsafe { (self.calls.current_context)(&mut now) };
        if code == 0 && now as usize == context {
            return Ok(None);
        }
        // SAFETY: a context returned by `retain_context`.
        self.checked(unsafe { (self.calls.push_context)(context as Raw) }, "cuCtxPushCurrent")?;
        Ok(Some(ContextScope(self)))
    }

    /// torch's current stream of this thread.
    #[inline]
    pub fn current_stream(&self, device: i32) -> Outcome<usize> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: room for the result; torch refuses a device that does not exist.
        let code = unsafe { (self.stream)(device, &mut stream) };
        super::aten::checked(code, "aoti_torch_get_current_cuda_stream")?;
        Ok(stream as usize)
    }

    /// The library of a test's driver.
    pub fn library_of_test(&self) -> Option<Raw> {
        self.of_test.map(|library| library as Raw)
    }

    /// The primary context of a device.
    pub fn device(&'static self, device: i32) -> Outcome<DeviceContext> {
        let mut devices = self.devices.lock().map_err(|_| Failure("the table of GPU modules is broken".into()))?;
        Ok(DeviceContext { driver: self, context: self.context(&mut devices, device)?, device })
    }

    /// Whether work on the stream of a device is recorded now, in place of being run.  An error counts as yes.
    pub fn captures(&'static self, device: i32, stream: usize) -> bool {
        let mut status = 0;
        let Ok(_entered) = self.device(device).and_then(|device| device.enter()) else { return true };
        // SAFETY: torch's stream, which lives as long as the process, and room for the result.
        let code = unsafe { (self.calls.is_capturing)(stream as Raw, &mut status) };
        code != 0 || status != 0
    }

    /// An executable CUDA graph at this address, on a device.
    ///
    /// The value does not own the graph: its owner must keep the graph until `launch` is called for the last time.
    pub fn graph(&'static self, executable: usize, device: i32) -> Outcome<Graph> {
        let mut devices = self.devices.lock().map_err(|_| Failure("the table of GPU modules is broken".into()))?;
        Ok(Graph { driver: self, executable, context: self.context(&mut devices, device)? })
    }

    /// Records what `start` starts on the stream that it is given, as an executable CUDA graph.  Nothing runs.
    pub fn record(&'static self, device: i32, start: impl FnOnce(usize) -> Outcome<()>) -> Outcome<OwnedGraph> {
        // Held to the end: one recording at a time uses the stream.
        let mut devices = self.devices.lock().map_err(|_| Failure("the table of GPU modules is broken".into()))?;
        let context = self.context(&mut devices, device)?;
        let _entered = self.enter(context)?;
        let _relaxed = RelaxedScope::enter(self)?;
        let mut stream = devices.recorders.get(&device).map_or(std::ptr::null_mut(), |stream| *stream as Raw);
        if stream.is_null() {
            // SAFETY: room for the result.
            self.checked(unsafe { (self.calls.create_stream)(&mut stream, NON_BLOCKING) }, "cuStreamCreate")?;
            devices.recorders.insert(device, stream as usize);
        }
        // SAFETY: the stream is this function's own.
        self.checked(unsafe { (self.calls.begin_capture)(stream, RELAXED) }, "cuStreamBeginCapture")?;
        let started = start(stream as usize);
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: ends the recording that began above; room for the result.
        let ended = self.checked(unsafe { (self.calls.end_capture)(stream, &mut graph) }, "cuStreamEndCapture");
        let made = started.and(ended).and_then(|()| {
            // SAFETY: a recorded graph, and room for the result.
            self.checked(unsafe { (self.calls.instantiate)(&mut executable, graph, 0) }, "cuGraphInstantiate")
        });
        if !graph.is_null() {
            // SAFETY: a recorded graph, of which the executable one is a copy.
            unsafe { (self.calls.destroy_graph)(graph) };
        }
        made.map(|()| OwnedGraph(Graph { driver: self, executable: executable as usize, context }))
    }

    /// A function of a binary, loaded onto a device.  `shared`: bytes of shared memory of each program.
    pub fn function(
        &'static self,
        image: &[u8],
        entry: &CStr,
        device: i32,
        threads: u32,
        shared: u32,
    ) -> Outcome<Function> {
        let mut devices = self.devices.lock().map_err(|_| Failure("the table of GPU modules is broken".into()))?;
        let context = self.context(&mut devices, device)?;
        let _entered = self.enter(context)?;
        let key = (Box::from(image), device);
        let module = match devices.modules.get(&key) {
            Some(module) => *module as Raw,
            None => {
                let mut module = std::ptr::null_mut();
                // SAFETY: a whole ELF file, which contains its own length; the driver copies it.
                let code = unsafe { (self.calls.load_module)(&mut module, image.as_ptr().cast()) };
                self.checked(code, "cuModuleLoadData")?;
                devices.modules.insert(key, module as usize);
                module
            }
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: a loaded module and a C string.
        self.checked(unsafe { (self.calls.get_function)(&mut raw, module, entry.as_ptr()) }, "cuModuleGetFunction")?;
        if shared > PLAIN_SHARED {
            // SAFETY: a function of the module.
            let code = unsafe { (self.calls.set_attribute)(raw, MAX_DYNAMIC_SHARED, shared as c_int) };
            self.checked(code, "cuFuncSetAttribute")?;
        }
        Ok(Function { driver: self, raw: raw as usize, context, device, threads, shared })
    }
}

/// The primary context of a device.
#[derive(Clone, Copy)]
pub struct DeviceContext {
    driver: &'static Driver,
    context: usize,
    device: i32,
}

impl DeviceContext {
    /// Makes the context current until the result is dropped.
    #[inline]
    pub fn enter(&self) -> Outcome<Option<ContextScope<'static>>> {
        self.driver.enter(self.context)
    }

    /// torch's current stream of this thread.
    #[inline]
    pub fn stream(&self) -> Outcome<usize> {
        self.driver.current_stream(self.device)
    }
}

/// While this value exists, calls of this thread cannot spoil a recording that another thread makes.
struct RelaxedScope<'a>(&'a Driver, c_int);

impl RelaxedScope<'_> {
    fn enter(driver: &Driver) -> Outcome<RelaxedScope<'_>> {
        let mut mode = RELAXED;
        // SAFETY: the mode before is written to the same place.
        driver.checked(unsafe { (driver.calls.exchange_mode)(&mut mode) }, "cuThreadExchangeStreamCaptureMode")?;
        Ok(RelaxedScope(driver, mode))
    }
}

impl Drop for RelaxedScope<'_> {
    fn drop(&mut self) {
        // SAFETY: as in `enter`, with the mode before.
        unsafe { (self.0.calls.exchange_mode)(&mut self.1) };
    }
}

pub struct ContextScope<'a>(&'a Driver);

impl Drop for ContextScope<'_> {
    fn drop(&mut self) {
        let mut left = std::ptr::null_mut();
        // SAFETY: pops the context that `enter` pushed on this thread.
        unsafe { (self.0.calls.pop_context)(&mut left) };
    }
}

/// A kernel on a device, ready to start.
#[derive(Clone, Copy)]
pub struct Function {
    driver: &'static Driver,
    raw: usize,
    context: usize,
    pub device: i32,
    pub threads: u32,
    shared: u32,
}

impl Function {
    /// A number that no other loaded function has.
    #[inline]
    pub fn id(&self) -> u64 {
        self.raw as u64
    }

    /// torch's current stream of this thread.
    #[inline]
    pub fn stream(&self) -> Outcome<usize> {
        self.driver.current_stream(self.device)
    }

    /// Starts the kernel and does not wait for it.  Each word holds one argument in its lowest bytes.
    #[inline]
    pub fn launch(&self, grid: [u32; 3], stream: usize, words: &mut [u64]) -> Outcome<()> {
        let mut arguments: smallvec::SmallVec<[Raw; 32]> =
            words.iter_mut().map(|w| std::ptr::from_mut(w).cast()).collect();
        let _entered = self.driver.enter(self.context)?;
        let [x, y, z] = grid;
        // SAFETY: a loaded function, torch's stream on its device, and a word for each parameter: the number and the
        // types of the parameters were compared when the plan was built.  The driver copies the arguments before it
        // returns.
        let code = unsafe {
            (self.driver.calls.launch)(
                self.raw as Raw,
                x,
                y,
                z,
                self.threads,
                1,
                1,
                self.shared,
                stream as Raw,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.driver.checked(code, "cuLaunchKernel")
    }
}

/// An executable CUDA graph.
pub struct Graph {
    driver: &'static Driver,
    executable: usize,
    context: usize,
}

impl Graph {
    /// Starts all kernels of the graph on a stream and does not wait for them.
    #[inline]
    pub fn launch(&self, stream: usize) -> Outcome<()> {
        let _entered = self.driver.enter(self.context)?;
        // SAFETY: a graph that its owner keeps (`Driver::graph`), and torch's stream on its device.
        let code = unsafe { (self.driver.calls.launch_graph)(self.executable as Raw, stream as Raw) };
        self.driver.checked(code, "cuGraphLaunch")
    }
}

/// An executable CUDA graph that ends with this value.  A run that has begun is completed.
pub struct OwnedGraph(Graph);

impl OwnedGraph {
    /// As `Graph::launch`.
    #[inline]
    pub fn launch(&self, stream: usize) -> Outcome<()> {
        self.0.launch(stream)
    }
}

impl Drop for OwnedGraph {
    fn drop(&mut self) {
        let _relaxed = RelaxedScope::enter(self.0.driver);
        // SAFETY: this value owns the graph.  The driver completes a run that has begun.  A driver that has ended with
        // the process answers with an error.
        unsafe { (self.0.driver.calls.destroy_executable)(self.0.executable as Raw) };
    }
}
