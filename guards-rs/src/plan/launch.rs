//! GPU kernels, launched by a direct call of the driver.
//!
//! In: an `ir.plan.Launch` and its binary in `ir.plan.Plan.binaries`.  Out: `Launch`: the function, loaded onto its
//! device, with grid and arguments as programs over the sizes of a call.  No part of it is a Python object.
//! `launch_batch.rs` starts it.
//!
//! Binaries assume that addresses are multiples of 16 bytes.  At the first other address (a caller's slice),
//! `runtime.triton_build.unaligned` is called once for a binary without that assumption.

use std::ffi::CString;
use std::sync::OnceLock;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::argument::Reader;
use super::size::Size;
use super::{Frame, StepError};
use crate::ffi::aten::{Failure, Outcome};
use crate::ffi::cuda::{self, Function};
use crate::hook_state::paused;
use crate::registered_object;

const ALIGNED: u64 = 15;

/// An argument, in the lowest bytes of a word.
enum Argument {
    Address(usize),
    Word(u64),
    /// An integer computed from sizes, with its number of bits.
    Size(Size, u32),
}

pub struct Launch {
    name: String,
    device: i32,
    function: Function,
    unaligned: OnceLock<Function>,
    grid: [Size; 3],
    arguments: Box<[Argument]>,
    /// Number of pointers after the arguments.  Only Triton's own runtime would use them.
    nulls: usize,
    pub slots: Box<[usize]>,
    pub work: u64,
}

impl Launch {
    pub fn build(plan: &Bound<'_, PyAny>, reader: &Reader<'_>, step: &Bound<'_, PyAny>) -> PyResult<Launch> {
        let name = step.getattr("kernel")?.extract::<String>()?;
        let device = step.getattr("device")?.getattr("index")?.extract::<Option<i32>>()?;
        let device =
            device.ok_or_else(|| PyValueError::new_err(format!("kernel {name} on a device without a number")))?;
        let binary = plan.getattr("binaries")?.get_item(&name);
        let binary = binary.map_err(|_| PyValueError::new_err(format!("kernel {name} has no binary")))?;
        let parameters = binary.getattr("parameters")?.extract::<Vec<String>>()?;
        let given: Vec<Bound<'_, PyAny>> = step.getattr("arguments")?.try_iter()?.collect::<PyResult<_>>()?;
        let pointers = parameters.get(given.len()..).filter(|rest| rest.iter().all(|p| p == "u64"));
        let Some(pointers) = pointers else {
            let (n, takes) = (given.len(), parameters.join(", "));
            return Err(PyValueError::new_err(format!("kernel {name} is given {n} arguments and takes ({takes})")));
        };
        let arguments = given.iter().zip(&parameters).map(|(value, kind)| Argument::read(reader, value, kind));
        let arguments = arguments.collect::<PyResult<Box<[Argument]>>>()?;
        let slots = arguments.iter().filter_map(Argument::slot).collect();
        let [x, y, z] = step.getattr("grid")?.extract::<[Bound<'_, PyAny>; 3]>()?;
        let size = |n: &Bound<'_, PyAny>| reader.symbols.compile(n);
        Ok(Launch {
            function: load(&binary, device)?,
            nulls: pointers.len(),
            grid: [size(&x)?, size(&y)?, size(&z)?],
            work: step.getattr("work")?.extract()?,
            unaligned: OnceLock::new(),
            name,
            device,
            arguments,
            slots,
        })
    }

    fn grid(&self, env: &[i64]) -> Outcome<[u32; 3]> {
        let mut grid = [0; 3];
        for (n, size) in grid.iter_mut().zip(&self.grid) {
            let value = size.eval(env)?;
            *n = u32::try_from(value)
                .map_err(|_| Failure(format!("a grid of {value} programs does not fit into 32 bits")))?;
        }
        Ok(grid)
    }

    /// The function for addresses that are no multiples of 16.  Compiled at the first such call.
    #[cold]
    fn unaligned(&self, frame: &mut Frame<'_, '_>) -> Result<Function, StepError> {
        if let Some(function) = self.unaligned.get() {
            return Ok(*function);
        }
        let plan = &frame.plan.source;
        frame.flush()?;
        frame.pin()?;
        frame.gil.acquire();
        let made = Python::try_attach(|py| -> PyResult<Function> {
            let binary = paused(|| registered_object::UNALIGNED.bound(py)?.call1((plan, &self.name)))?;
            load(&binary, self.device)
        });
        let made = made.ok_or_else(|| Failure("the interpreter is shutting down".into()))??;
        Ok(*self.unaligned.get_or_init(|| made))
    }

    #[cold]
    fn failed(&self, grid: [u32; 3], Failure(why): Failure) -> Failure {
        let ([x, y, z], threads) = (grid, self.function.threads);
        Failure(format!("{} on cuda:{}, {x} x {y} x {z} programs of {threads} threads: {why}", self.name, self.device))
    }
}

/// Loads an `ir.plan.Binary` onto a device.
fn load(binary: &Bound<'_, PyAny>, device: i32) -> PyResult<Function> {
    let image = binary.getattr("image")?.extract::<Vec<u8>>()?;
    let entry = binary.getattr("entry")?.extract::<String>()?;
    let (threads, shared) = (binary.getattr("threads")?.extract()?, binary.getattr("shared")?.extract()?);
    let name = CString::new(entry.as_str())?;
    let loaded = cuda::driver().and_then(|driver| driver.function(&image, &name, device, threads, shared));
    loaded.map_err(|Failure(why)| PyRuntimeError::new_err(format!("kernel {entry} on cuda:{device}: {why}")))
}

impl Argument {
    fn read(reader: &Reader<'_>, value: &Bound<'_, PyAny>, kind: &str) -> PyResult<Argument> {
        let argument = match (reader.slot(value)?, kind) {
            (Some(slot), "u64") => Some(Argument::Address(slot)),
            (Some(_), _) => None,
            (None, "f32") => Some(Argument::Word(u64::from(value.extract::<f32>()?.to_bits()))),
            (None, "f64") => Some(Argument::Word(value.extract::<f64>()?.to_bits())),
            (None, _) => {
                let bits = kind.get(1..).and_then(|n| n.parse().ok()).filter(|bits| [8, 16, 32, 64].contains(bits));
                bits.map(|bits| reader.symbols.compile(value).map(|size| Argument::Size(size, bits))).transpose()?
            }
        };
        let unfit = || PyValueError::new_err(format!("{value} is not an argument for a parameter of type {kind}"));
        let argument = argument.ok_or_else(unfit)?;
        match &argument {
            Argument::Size(Size::Const(number), bits) => Ok(Argument::Word(packed(*number, *bits)?)),
            _ => Ok(argument),
        }
    }

    fn slot(&self) -> Option<usize> {
        match self {
            Argument::Address(slot) => Some(*slot),
            _ => None,
        }
    }
}

/// Encodes a signed integer in so many bits.
fn packed(number: i64, bits: u32) -> Outcome<u64> {
    let rest = 64 - bits;
    if (number << rest) >> rest != number {
        return Err(Failure(format!("{number} does not fit the {bits} bits of a kernel's argument")));
    }
    Ok(number as u64)
}

impl Launch {
    /// Starts the kernel on a stream and does not wait for it.  Each word holds one argument.
    pub fn launch(&self, function: Function, grid: [u32; 3], words: &mut [u64], stream: usize) -> Outcome<()> {
        function.launch(grid, stream, words).map_err(|failure| self.failed(grid, failure))
    }
}

impl Frame<'_, '_> {
    pub(super) fn start(&mut self, launch: &Launch) -> Result<(), StepError> {
        let grid = launch.grid(self.env)?;
        if grid.contains(&0) {
            return Ok(());
        }
        let mut words: SmallVec<[u64; 32]> = SmallVec::new();
        let mut addresses = 0;
        for argument in &launch.arguments {
            words.push(match argument {
                Argument::Address(slot) => {
                    addresses |= self.ptrs[*slot] as u64;
                    self.ptrs[*slot] as u64
                }
                Argument::Word(word) => *word,
                Argument::Size(size, bits) => packed(size.eval(self.env)?, *bits)?,
            });
        }
        words.resize(words.len() + launch.nulls, 0);
        let function = if addresses & ALIGNED == 0 { launch.function } else { launch.unaligned(self)? };
        let stream = self.stream_of(launch.device, || function.stream().map_err(|why| launch.failed(grid, why)))?;
        self.add(launch.device, stream, launch.work, Some((function, grid)), &words)
    }

    /// torch's current stream of a device, read once in a run.
    pub(super) fn stream_of(&mut self, device: i32, read: impl FnOnce() -> Outcome<usize>) -> Outcome<usize> {
        match self.stream {
            Some((of, stream)) if of == device => Ok(stream),
            _ => {
                let stream = read()?;
                self.stream = Some((device, stream));
                Ok(stream)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_do_not_fit_their_parameter_are_failures() {
        assert_eq!(packed(-1, 32).ok(), Some(u64::MAX));
        assert_eq!(packed(127, 8).ok(), Some(127));
        assert_eq!(packed(i64::MIN, 64).ok(), Some(1 << 63));
        for (number, bits) in [(128, 8), (-129, 8), (1 << 31, 32), (-(1 << 31) - 1, 32), (1 << 15, 16)] {
            let failure = packed(number, bits).err().map(|Failure(text)| text);
            assert!(failure.is_some_and(|text| text.contains(&number.to_string())), "{number}");
        }
    }
}
