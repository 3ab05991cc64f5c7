//! Products of matrices on NVIDIA GPUs by cuBLASLt, the library that torch has loaded.
//!
//! In: a `Problem`: sizes, strides and dtype of row-major matrices, with an optional bias of each column.  Out: `Product`,
//! whose descriptors and algorithm are found once.  `Product::start` only starts the kernel.  ATen's call, which asks the
//! library for an algorithm each time, takes the host up to three times as long.  Sums are in float32, also those of
//! partial results.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::aten::{Failure, Outcome};
use super::cuda::{driver, find, DeviceContext};

type Raw = *mut c_void;
type Status = c_int;

/// Addresses are usually multiples of this.
const ALIGNED: usize = 16;

const COMPUTE_32F: c_int = 68; // CUBLAS_COMPUTE_32F
const FLOAT32: c_int = 0; // CUDA_R_32F
const TRANSPOSED: c_int = 1; // CUBLAS_OP_T
const BIAS: c_int = 4; // CUBLASLT_EPILOGUE_BIAS
const REDUCED_IN_FLOAT32: c_int = 2; // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE

// Attributes of a product: cublasLtMatmulDescAttributes_t.
const TRANSPOSE: [c_int; 2] = [3, 4];
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;
const BIAS_TYPE: c_int = 26;
// Attributes of a matrix: cublasLtMatrixLayoutAttribute_t.
const BATCH: c_int = 5;
const BATCH_STRIDE: c_int = 6;
// Attributes of a preference: cublasLtMatmulPreferenceAttributes_t.
const MOST_WORKSPACE: c_int = 1;
const REDUCTION: c_int = 3;
const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];

type Create = unsafe extern "C" fn(*mut Raw) -> Status;
type CreateProduct = unsafe extern "C" fn(*mut Raw, c_int, c_int) -> Status;
type CreateMatrix = unsafe extern "C" fn(*mut Raw, c_int, u64, u64, i64) -> Status;
type Set = unsafe extern "C" fn(Raw, c_int, *const c_void, usize) -> Status;
type Destroy = unsafe extern "C" fn(Raw) -> Status;
type Choose = unsafe extern "C" fn(Raw, Raw, Raw, Raw, Raw, Raw, Raw, c_int, *mut Choice, *mut c_int) -> Status;
#[rustfmt::skip]
type Multiply = unsafe extern "C" fn(
    Raw, Raw, *const f32, *const c_void, Raw, *const c_void, Raw, *const f32, *const c_void, Raw, Raw, Raw, *const [u64; 8],
    Raw, usize, Raw,
) -> Status;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Choice {
    algorithm: [u64; 8],
    workspace: usize,
    status: Status,
    waves: f32,
    reserved: [c_int; 4],
}

macro_rules! table {
    ($($field:ident: $ty:ty = $name:literal,)*) => {
        struct Library { $($field: $ty,)* }

        impl Library {
            fn resolve(symbol: impl Fn(&CStr) -> Option<Raw>) -> Option<Library> {
                Some(Library { $($field: {
                    let address = symbol($name)?;
                    // SAFETY: the signatures of cublasLt.h, which are the same in CUDA 12 and 13.
                    unsafe { std::mem::transmute::<Raw, $ty>(address) }
                },)* })
            }
        }
    };
}

table! {
    create: Create = c"cublasLtCreate",
    product: CreateProduct = c"cublasLtMatmulDescCreate",
    set_product: Set = c"cublasLtMatmulDescSetAttribute",
    destroy_product: Destroy = c"cublasLtMatmulDescDestroy",
    matrix: CreateMatrix = c"cublasLtMatrixLayoutCreate",
    set_matrix: Set = c"cublasLtMatrixLayoutSetAttribute",
    destroy_matrix: Destroy = c"cublasLtMatrixLayoutDestroy",
    preference: Create = c"cublasLtMatmulPreferenceCreate",
    set_preference: Set = c"cublasLtMatmulPreferenceSetAttribute",
    destroy_preference: Destroy = c"cublasLtMatmulPreferenceDestroy",
    choose: Choose = c"cublasLtMatmulAlgoGetHeuristic",
    multiply: Multiply = c"cublasLtMatmul",
    status: unsafe extern "C" fn(Status) -> *const c_char = c"cublasLtGetStatusString",
}

/// The library that torch has loaded.
fn loaded() -> Option<&'static Library> {
    static LOADED: OnceLock<Option<Library>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            let handle = [c"libcublasLt.so.13", c"libcublasLt.so.12"].into_iter().find_map(|name| {
                // SAFETY: NOLOAD only finds a loaded library by name; the handle is never closed.
                let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
                (!handle.is_null()).then_some(handle)
            })?;
            Library::resolve(|name| find(handle, name))
        })
        .as_ref()
}

/// Whether torch has loaded a library for products on GPUs.
pub fn is_loaded() -> bool {
    loaded().is_some()
}

impl Library {
    fn checked(&self, status: Status, call: &str) -> Outcome<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the result is null, or a string that the library keeps for ever.
        let text = unsafe {
            let text = (self.status)(status);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy())
        };
        Err(Failure(format!("{call}: {} ({status})", text.unwrap_or("unknown status".into()))))
    }
}

/// Matrices in row-major terms.  Strides are in elements, of one batch and within it.
pub struct Problem {
    /// CUDA's number of the dtype, and its bytes.
    pub dtype: (c_int, usize),
    pub batch: i64,
    pub rows: i64,
    pub columns: i64,
    pub depth: i64,
    /// Batch, rows, depth.
    pub left: [i64; 3],
    /// Batch, depth, columns.
    pub right: [i64; 3],
    /// Batch, rows.  The columns are adjacent.
    pub out: [i64; 2],
    pub has_bias: bool,
    /// Most bytes of workspace.
    pub workspace: usize,
}

/// A matrix in the library's terms, which are column-major.
struct Matrix {
    transposed: bool,
    rows: i64,
    columns: i64,
    leading: i64,
    batch_stride: i64,
}

impl Matrix {
    /// The matrix with element (i, j) at `i * strides[0] + j * strides[1]`.
    fn of(sizes: [i64; 2], strides: [i64; 2], batch_stride: i64) -> Outcome<Matrix> {
        let [(rows, columns), (step, leading)] = [sizes, strides].map(|[a, b]| (a, b));
        if step == 1 && leading >= rows {
            return Ok(Matrix { transposed: false, rows, columns, leading, batch_stride });
        }
        if leading == 1 && step >= columns {
            return Ok(Matrix { transposed: true, rows: columns, columns: rows, leading: step, batch_stride });
        }
        Err(Failure(format!("a matrix of {rows} x {columns} with the strides {step} and {leading}")))
    }
}

/// An object of the library.
struct Held(Raw, Destroy);

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: created by the library, and destroyed once.
        unsafe { (self.1)(self.0) };
    }
}

fn made(library: &Library, call: &str, destroy: Destroy, create: impl FnOnce(&mut Raw) -> Status) -> Outcome<Held> {
    let mut raw = std::ptr::null_mut();
    library.checked(create(&mut raw), call)?;
    Ok(Held(raw, destroy))
}

/// Sets an attribute of an object.
fn set<T>(library: &Library, set: Set, object: &Held, attribute: c_int, value: T) -> Outcome<()> {
    // SAFETY: the library copies the value, whose size it compares with the attribute's.
    let status = unsafe { set(object.0, attribute, std::ptr::from_ref(&value).cast(), size_of::<T>()) };
    library.checked(status, "an attribute of cuBLASLt")
}

/// A product that is ready to start.
pub struct Product {
    library: &'static Library,
    context: DeviceContext,
    handle: usize,
    /// Right, left, out: the library computes the transposed product, column-major.
    matrices: [Held; 3],
    /// The description, which contains the address of the bias.
    description: Mutex<Held>,
    itemsize: usize,
    has_bias: bool,
    workspace: usize,
    aligned: Choice,
    unaligned: OnceLock<Choice>,
}

// SAFETY: the library's objects are not bound to threads; the one that changes is behind a lock.
unsafe impl Send for Product {}
// SAFETY: as above.
unsafe impl Sync for Product {}

impl Product {
    pub fn new(problem: &Problem, device: i32) -> Outcome<Product> {
        let driver = driver()?;
        let library = match driver.library_of_test() {
            Some(handle) => Library::resolve(|name| find(handle, name)).map(|found| &*Box::leak(Box::new(found))),
            None => loaded(),
        };
        let library = library.ok_or_else(|| Failure("torch has not loaded cuBLASLt".into()))?;
        let context = driver.device(device)?;
        let _entered = context.enter()?;
        let handle = handle_of(library, device)?;
        let Problem { dtype: (dtype, itemsize), batch, rows, columns, depth, left, right, out, has_bias, workspace } =
            *problem;
        let matrices = [
            Matrix::of([columns, depth], [right[2], right[1]], right[0])?,
            Matrix::of([depth, rows], [left[2], left[1]], left[0])?,
            Matrix::of([columns, rows], [1, out[1]], out[0])?,
        ];
        let description = made(library, "cublasLtMatmulDescCreate", library.destroy_product, |raw| {
            // SAFETY: room for the result.
            unsafe { (library.product)(raw, COMPUTE_32F, FLOAT32) }
        })?;
        for (attribute, matrix) in TRANSPOSE.into_iter().zip(&matrices) {
            if matrix.transposed {
                set(library, library.set_product, &description, attribute, TRANSPOSED)?;
            }
        }
        if has_bias {
            set(library, library.set_product, &description, EPILOGUE, BIAS)?;
            set(library, library.set_product, &description, BIAS_TYPE, dtype)?;
        }
        let held = |matrix: &Matrix| -> Outcome<Held> {
            let made = made(library, "cublasLtMatrixLayoutCreate", library.destroy_matrix, |raw| {
                // SAFETY: room for the result.
                unsafe { (library.matrix)(raw, dtype, matrix.rows as u64, matrix.columns as u64, matrix.leading) }
            })?;
            if batch > 1 {
                set(library, library.set_matrix, &made, BATCH, batch as i32)?;
                set(library, library.set_matrix, &made, BATCH_STRIDE, matrix.batch_stride)?;
            }
            Ok(made)
        };
        let [right, left, out] = &matrices;
        let mut product = Product {
            library,
            context,
            handle,
            matrices: [held(right)?, held(left)?, held(out)?],
            description: Mutex::new(description),
            itemsize,
            has_bias,
            workspace,
            aligned: Choice::default(),
            unaligned: OnceLock::new(),
        };
        product.aligned = product.choose(ALIGNED)?;
        Ok(product)
    }

    /// The library's first choice for addresses that are multiples of `alignment`.
    fn choose(&self, alignment: usize) -> Outcome<Choice> {
        let library = self.library;
        let preference = made(library, "cublasLtMatmulPreferenceCreate", library.destroy_preference, |raw| {
            // SAFETY: room for the result.
            unsafe { (library.preference)(raw) }
        })?;
        set(library, library.set_preference, &preference, MOST_WORKSPACE, self.workspace)?;
        set(library, library.set_preference, &preference, REDUCTION, REDUCED_IN_FLOAT32)?;
        for attribute in ALIGNMENTS {
            set(library, library.set_preference, &preference, attribute, alignment as u32)?;
        }
        let description = self.description.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_bias {
            // An address is not read here, but its alignment is.
            set(library, library.set_product, &description, BIAS_POINTER, 4096 + alignment)?;
        }
        let (mut choice, mut found) = (Choice::default(), 0);
        let [right, left, out] = &self.matrices;
        // SAFETY: live objects of the library, and room for one result.
        let status = unsafe {
            (library.choose)(
                self.handle as Raw,
                description.0,
                right.0,
                left.0,
                out.0,
                out.0,
                preference.0,
                1,
                &mut choice,
                &mut found,
            )
        };
        library.checked(status, "cublasLtMatmulAlgoGetHeuristic")?;
        library.checked(choice.status, "cublasLtMatmulAlgoGetHeuristic")?;
        if found < 1 || choice.workspace > self.workspace {
            return Err(Failure("cuBLASLt has no algorithm for this product".into()));
        }
        Ok(choice)
    }

    /// Bytes of workspace for the algorithms, at aligned addresses and at others.
    pub fn workspace(&self) -> Outcome<usize> {
        let _entered = self.context.enter()?;
        Ok(self.aligned.workspace.max(self.choose(self.itemsize)?.workspace))
    }

    /// torch's current stream of this thread.
    pub fn stream(&self) -> Outcome<usize> {
        self.context.stream()
    }

    /// Starts the product and does not wait for it.  The addresses are those of matrices like `Problem`'s, and
    /// of `Problem::workspace` bytes that nothing else uses on the stream meanwhile.
    pub fn start(&self, [left, right, out]: [usize; 3], bias: usize, workspace: usize, stream: usize) -> Outcome<()> {
        let _entered = self.context.enter()?;
        let choice = if (left | right | out | bias).is_multiple_of(ALIGNED) {
            &self.aligned
        } else if let Some(choice) = self.unaligned.get() {
            choice
        } else {
            let choice = self.choose(self.itemsize)?;
            self.unaligned.get_or_init(|| choice)
        };
        let description = self.description.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_bias {
            set(self.library, self.library.set_product, &description, BIAS_POINTER, bias)?;
        }
        let (one, zero) = (1.0f32, 0.0f32);
        let matrices = &self.matrices;
        // SAFETY: live objects of the library; the compiler made the plan with sizes and strides of its buffers, as for
        // a kernel, and the library copies the numbers before it returns.
        let status = unsafe {
            (self.library.multiply)(
                self.handle as Raw,
                description.0,
                &one,
                right as *const c_void,
                matrices[0].0,
                left as *const c_void,
                matrices[1].0,
                &zero,
                out as *const c_void,
                matrices[2].0,
                out as Raw,
                matrices[2].0,
                &choice.algorithm,
                workspace as Raw,
                self.workspace,
                stream as Raw,
            )
        };
        self.library.checked(status, "cublasLtMatmul")
    }
}

/// The library's handle of a device, whose context is current.  Never destroyed.
fn handle_of(library: &Library, device: i32) -> Outcome<usize> {
    static HANDLES: Mutex<Vec<(usize, i32, usize)>> = Mutex::new(Vec::new());
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (library.create as usize, device);
    if let Some((_, _, handle)) = handles.iter().find(|(create, device, _)| (*create, *device) == key) {
        return Ok(*handle);
    }
    let mut handle = std::ptr::null_mut();
    // SAFETY: room for the result.
    library.checked(unsafe { (library.create)(&mut handle) }, "cublasLtCreate")?;
    handles.push((key.0, key.1, handle as usize));
    Ok(handle as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_are_transposed_unless_their_columns_are_contiguous() {
        let of =
            |sizes, strides| Matrix::of(sizes, strides, 0).ok().map(|m| (m.transposed, m.rows, m.columns, m.leading));
        assert_eq!(of([3, 5], [1, 3]), Some((false, 3, 5, 3)));
        assert_eq!(of([3, 5], [1, 8]), Some((false, 3, 5, 8)));
        assert_eq!(of([3, 5], [5, 1]), Some((true, 5, 3, 5)));
        assert_eq!(of([3, 5], [1, 2]), None); // columns overlap
        assert_eq!(of([3, 5], [2, 2]), None);
    }
}
