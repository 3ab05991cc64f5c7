//! Launches that follow each other on a GPU start together, by one call of the driver.
//!
//! In: the kernels and products of a run, with their arguments.  Out: `Frame::flush` starts the waiting ones.  If a batch
//! had the same arguments in an earlier call, it is recorded as a CUDA graph (nothing runs meanwhile), and started as
//! one from then on.  A batch with other arguments is started one by one.  So a recording changes no result, and owns no
//! memory: addresses repeat in most loops, because torch's allocator returns the same ones for the same requests.
//!
//! A batch ends before a step that may read or write memory, wait, or run other code.  Memory that a run frees
//! meanwhile is freed after the batch has started: until then another thread could get it, and write to it first.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

use super::{pins, Frame, Slot, Step, StepError};
use crate::ffi::aten::{Failure, Outcome};
use crate::ffi::cuda::{self, Function, OwnedGraph};

/// Fewer launches are started one by one.
const FEW: usize = 2;
/// A batch that keeps more bytes from being freed is started.
const MOST_HELD: i64 = 32 << 20;
/// Recordings of one batch, for addresses that take turns.
const RECORDINGS: usize = 4;
/// Calls whose arguments are remembered.
const REMEMBERED: usize = 8;
/// Recordings that one batch makes at most: addresses that keep changing are not worth it.
const ATTEMPTS: usize = 16;

/// A launch that waits.
struct Waiting {
    step: usize,
    /// None for a product.
    kernel: Option<(Function, [u32; 3])>,
    /// Its first argument in `Batch::words`, and the end of its arguments.
    words: (usize, usize),
}

/// The launches of a run that wait.
#[derive(Default)]
pub struct Batch {
    /// Launches wait.  False while someone watches single steps.
    pub gathers: bool,
    device: i32,
    stream: usize,
    work: u64,
    waiting: Vec<Waiting>,
    /// Functions, grids and arguments.  Two batches with equal words are the same work.
    words: Vec<u64>,
    /// Tensors to free once the launches have started.
    freed: Vec<Slot>,
    /// Steps after which inputs end.
    ended: Vec<usize>,
    /// Bytes of `freed` and `ended`.
    held: i64,
}

/// The recordings of a plan, by the first step of their batch.
#[derive(Default)]
pub struct Recordings(Mutex<HashMap<usize, Place>>);

/// The recordings of one batch.
#[derive(Default)]
struct Place {
    /// The latest first.
    made: Vec<(Box<[u64]>, OwnedGraph)>,
    /// Hashes of the arguments of the last calls.
    seen: Vec<u64>,
    attempts: usize,
}

impl Place {
    fn find(&self, words: &[u64]) -> Option<&OwnedGraph> {
        self.made.iter().find(|(known, _)| **known == *words).map(|(_, graph)| graph)
    }

    /// Whether a call with these arguments is to be recorded: an earlier call had them.
    fn repeats(&mut self, words: &[u64]) -> bool {
        if self.attempts == ATTEMPTS {
            return false;
        }
        let mut hasher = DefaultHasher::new();
        words.hash(&mut hasher);
        let hash = hasher.finish();
        if self.seen.contains(&hash) {
            return true;
        }
        self.seen.insert(0, hash);
        self.seen.truncate(REMEMBERED);
        false
    }
}

impl Frame<'_, '_> {
    /// Adds a launch of the current step.
    pub(super) fn add(
        &mut self,
        device: i32,
        stream: usize,
        work: u64,
        kernel: Option<(Function, [u32; 3])>,
        arguments: &[u64],
    ) -> Result<(), StepError> {
        if self.batch.device != device || self.batch.stream != stream {
            self.flush()?;
            (self.batch.device, self.batch.stream) = (device, stream);
        }
        let batch = &mut self.batch;
        match &kernel {
            Some((function, grid)) => {
                batch.words.push(function.id());
                batch.words.extend(grid.map(u64::from));
            }
            None => batch.words.push(self.next as u64),
        }
        let first = batch.words.len();
        batch.words.extend_from_slice(arguments);
        batch.waiting.push(Waiting { step: self.next, kernel, words: (first, batch.words.len()) });
        batch.work = batch.work.saturating_add(work);
        if batch.gathers {
            return Ok(());
        }
        self.flush()
    }

    /// Empties slots, after the launches that wait.
    pub(super) fn free(&mut self, slots: &[usize]) -> Result<(), StepError> {
        if self.batch.is_waiting() && slots.iter().any(|slot| self.pins.has(*slot)) {
            self.flush()?; // a pin ends with its slot
        }
        if !self.batch.is_waiting() {
            for slot in slots {
                self.slots[*slot] = Slot::Empty;
                self.pins.forget(*slot);
            }
            return Ok(());
        }
        let bytes = self.bytes(slots);
        for slot in slots {
            self.batch.freed.push(std::mem::replace(&mut self.slots[*slot], Slot::Empty));
        }
        self.hold(bytes)
    }

    /// Gives up the inputs that end with a step, after the launches that wait.
    pub(super) fn end_inputs(&mut self, step: usize) -> Result<(), StepError> {
        if !self.batch.is_waiting() {
            return self.give_up(step);
        }
        self.batch.ended.push(step);
        self.hold(self.bytes(&self.plan.ends[step]))
    }

    fn bytes(&self, slots: &[usize]) -> i64 {
        let bytes = |slot: &usize| self.slots[*slot].handle().map_or(0, |handle| handle.storage_size());
        slots.iter().map(bytes).fold(0, i64::saturating_add)
    }

    fn hold(&mut self, bytes: i64) -> Result<(), StepError> {
        self.batch.held = self.batch.held.saturating_add(bytes);
        match self.batch.held > MOST_HELD {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn give_up(&mut self, step: usize) -> Result<(), StepError> {
        let Some(taken) = self.taken else { return Ok(()) };
        let next = std::mem::replace(&mut self.next, step + 1);
        pins::give_up(self, taken, &self.plan.ends[step])?;
        self.next = next;
        Ok(())
    }

    /// Starts the launches that wait.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<(), StepError> {
        if !self.batch.is_waiting() {
            return Ok(());
        }
        self.flush_some()
    }

    fn flush_some(&mut self) -> Result<(), StepError> {
        // Pinned is all that a waiting launch, or a later step, reads.
        let next = std::mem::replace(&mut self.next, self.batch.waiting[0].step);
        let released = self.release_gil_for(self.batch.work);
        self.next = next;
        released?;
        let mut batch = std::mem::take(&mut self.batch);
        let started = if batch.waiting.len() < FEW { Ok(false) } else { batch.replay(self.plan) };
        let started = started.and_then(|replayed| if replayed { Ok(()) } else { batch.start(self.plan) });
        let Batch { gathers, mut waiting, mut words, freed, ended, .. } = batch;
        waiting.clear();
        words.clear();
        self.batch = Batch { gathers, waiting, words, ..Batch::default() };
        drop(freed);
        for step in ended {
            self.give_up(step)?;
        }
        started
    }
}

impl Batch {
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether memory is freed once the launches have started.
    pub fn holds_memory(&self) -> bool {
        self.held > 0
    }

    /// Starts the launches one by one.
    fn start(&mut self, plan: &super::Plan) -> Result<(), StepError> {
        for i in 0..self.waiting.len() {
            let step = self.waiting[i].step;
            self.start_one(plan, i, self.stream).map_err(|failure| StepError::Launch(step, failure))?;
        }
        Ok(())
    }

    fn start_one(&mut self, plan: &super::Plan, i: usize, stream: usize) -> Outcome<()> {
        let Waiting { step, kernel, words: (first, end) } = &self.waiting[i];
        let words = &mut self.words[*first..*end];
        match (&plan.steps[*step], kernel) {
            (Step::Launch(launch), Some((function, grid))) => launch.launch(*function, *grid, words, stream),
            (Step::GpuProduct(product), None) => {
                let mut addresses = [0; 5];
                addresses.iter_mut().zip(words.iter()).for_each(|(address, word)| *address = *word as usize);
                product.start(addresses, stream)
            }
            _ => Err(Failure("a launch without its step".into())),
        }
    }

    /// Starts all launches by one recording.  False if there is none, and none is to be made.
    fn replay(&mut self, plan: &super::Plan) -> Result<bool, StepError> {
        let driver = cuda::driver()?;
        // Held while the recording starts: it may start only once at a time.  Another thread's call does not wait.
        let Ok(mut places) = plan.recordings.0.try_lock() else { return Ok(false) };
        if driver.captures(self.device, self.stream) {
            return Ok(false); // the caller records a graph of its own
        }
        let place = places.entry(self.waiting[0].step).or_default();
        if place.find(&self.words).is_none() {
            if !place.repeats(&self.words) {
                return Ok(false);
            }
            place.attempts += 1;
            let device = self.device;
            let record = |stream| (0..self.waiting.len()).try_for_each(|i| self.start_one(plan, i, stream));
            let Ok(graph) = driver.record(device, record) else {
                place.attempts = ATTEMPTS;
                return Ok(false);
            };
            place.made.insert(0, (Box::from(&self.words[..]), graph));
            place.made.truncate(RECORDINGS);
        }
        if place.find(&self.words).is_some_and(|graph| graph.launch(self.stream).is_ok()) {
            return Ok(true);
        }
        // Nothing has run.  For example, the device lacks memory for the graph.
        place.made.clear();
        place.attempts = ATTEMPTS;
        Ok(false)
    }
}
