//! Pins: protect the tensors of a run from other code that runs meanwhile.
//!
//! A run reads addresses once.  Foreign code may then give a tensor other memory (`set_`, `.data =`).  Foreign code is
//! a Python operator, an operator of another library, or another thread while the GIL is released.  Two rules prevent a
//! read of freed memory:
//! - *pin*: each tensor of the caller that is still to be read is pinned before foreign code may run for the first
//!   time.  Its storage lives until the run ends, or until nothing reads the tensor any more.
//! - *resolve*: after a step that ran foreign code, addresses are read again.  If a tensor has another form (sizes,
//!   strides, dtype, device) by then, the next step that reads it ends the run with an error.  No error is raised if
//!   other code has restored the form before that step.
//!
//! While the GIL is released, a step that reads a tensor itself (not its address) first compares storage and form
//! (`steady`).  If they differ, the step takes the GIL.  A plan that neither releases the GIL nor runs foreign code
//! pays nothing.

use pyo3::prelude::*;
use smallvec::SmallVec;

use super::{Frame, Slot, Step, StepError};
use crate::ffi::aten::{Failure, Form, Handle, Outcome, Pin};

/// The forms of the tensors in some slots.
pub type Forms = SmallVec<[(usize, Form); 1]>;

/// The storage of a tensor that foreign code can reach.
struct DictWatch {
    storage: usize,
    pin: Pin,
}

/// The pins of a run.  Empty until foreign code may run.
#[derive(Default)]
pub struct Pins {
    begun: bool,
    watched: Vec<DictWatch>,
    /// Forms of the watched tensors; empty if no step reads a tensor itself.  None for tensors without sizes or strides
    /// (sparse, nested): only operators read those, and they check the tensors themselves.
    forms: Vec<Option<Form>>,
    /// For each slot: the position in `watched` plus one; 0 for none.
    places: Vec<u32>,
    /// Pins of storages that tensors had before.  Views of them may still be read.
    former: Vec<Pin>,
    /// Slots whose tensors cannot be read in their current form, with the reason.
    unfit: Vec<(usize, String)>,
}

impl Pins {
    /// Drops the pin of a slot: nothing reads its tensor any more, or the slot holds another tensor.
    #[inline]
    pub fn forget(&mut self, slot: usize) {
        if let Some(place) = self.places.get_mut(slot).map(std::mem::take).filter(|place| *place > 0) {
            self.watched[place as usize - 1].pin = Pin::default();
            self.unfit.retain(|(other, _)| *other != slot);
        }
    }

    /// Whether the tensor of a slot is pinned.
    pub fn has(&self, slot: usize) -> bool {
        self.place(slot).is_some()
    }

    /// Whether a step may have to be refused (`Frame::refuse`).
    #[inline]
    pub fn any_unfit(&self) -> bool {
        !self.unfit.is_empty()
    }

    fn place(&self, slot: usize) -> Option<usize> {
        (*self.places.get(slot)? as usize).checked_sub(1)
    }

    fn form(&self, place: usize) -> Option<&Form> {
        self.forms.get(place)?.as_ref()
    }

    fn add(&mut self, slot: usize, n_slots: usize, watched: DictWatch) {
        if self.places.is_empty() {
            self.places.resize(n_slots, 0);
        }
        self.watched.push(watched);
        self.places[slot] = self.watched.len() as u32;
    }

    /// Whether the slot's tensor has the storage and form of before.  True for a slot that is not watched.
    fn is_steady(&self, slot: usize, handle: Handle) -> bool {
        let Some(place) = self.place(slot) else { return true };
        let same = |form: &Form| Form::of(handle).is_ok_and(|now| form.fits(&now));
        handle.storage() == self.watched[place].storage && self.form(place).is_none_or(same)
    }
}

impl Frame<'_, '_> {
    /// Pins the tensors of the caller: foreign code may run from now on.
    #[inline]
    pub(super) fn pin(&mut self) -> Outcome<()> {
        if self.pins.begun {
            return Ok(());
        }
        self.begin()
    }

    #[cold]
    #[inline(never)]
    fn begin(&mut self) -> Outcome<()> {
        self.pins.begun = true;
        let plan = self.plan;
        self.pins.watched.reserve(plan.outside.len());
        for &slot in &*plan.outside {
            let is_watched = self.pins.place(slot).is_some();
            if plan.last[slot] >= self.next && !is_watched && !matches!(self.slots[slot], Slot::Empty) {
                self.watch(slot)?;
            }
        }
        Ok(())
    }

    /// Pins the tensor in the slot.  Needs the GIL: `begin` and the functions that hand out a tensor of the plan hold
    /// it.
    fn watch(&mut self, slot: usize) -> Outcome<()> {
        let handle = self.slots[slot].handle()?;
        let py = self.gil.acquire();
        if self.plan.reads_tensors {
            self.pins.forms.push(Form::of(handle).ok());
        }
        let watched = DictWatch { storage: handle.storage(), pin: handle.pin(py)? };
        self.pins.add(slot, self.plan.n_slots, watched);
        Ok(())
    }

    /// Watches tensors of the plan that foreign code gets or has created, since it may keep them.
    pub(super) fn hand_out(&mut self, slots: impl Iterator<Item = usize>) -> Outcome<()> {
        self.pin()?;
        for slot in slots {
            let is_ours = matches!(self.slots[slot], Slot::Owned(_)) && self.plan.last[slot] > self.next;
            if is_ours && self.pins.place(slot).is_none() {
                self.watch(slot)?;
            }
        }
        Ok(())
    }

    /// Ensures that the tensors that a step reads have the pinned storage and form, or resolves them again.  Without
    /// the GIL another thread may change them right afterwards, as in any operator of torch; the earlier storages stay
    /// alive all the same.
    #[inline]
    pub(super) fn steady(&mut self, slots: &[usize]) -> Result<(), StepError> {
        if !self.gil.is_released() || self.pins.watched.is_empty() {
            return Ok(());
        }
        let steady = |slot: &usize| self.slots[*slot].handle().is_ok_and(|handle| self.pins.is_steady(*slot, handle));
        if slots.iter().all(steady) {
            return Ok(());
        }
        self.gil.acquire();
        self.resolve_all(self.next)?;
        match self.pins.any_unfit() {
            true => Ok(self.refuse(&self.plan.steps[self.next])?),
            false => Ok(()),
        }
    }

    /// After foreign code: reads again the addresses of tensors that the step `from` or a later one reads.
    #[inline(never)]
    pub(super) fn resolve_all(&mut self, from: usize) -> Result<(), StepError> {
        self.resolve(0..self.pins.places.len(), from)
    }

    /// The same for some slots.  Needs the GIL.
    pub(super) fn resolve(&mut self, slots: impl Iterator<Item = usize>, from: usize) -> Result<(), StepError> {
        let mut moved = false;
        for slot in slots {
            if self.plan.last[slot] >= from && self.pins.place(slot).is_some() {
                moved |= self.resolve_one(slot)?;
            }
        }
        if moved && self.plan.exclusive.instead(&self.slots[..self.plan.n_inputs]).is_some() {
            let text =
                "an input that the graph writes shares memory with another input now, but did not when the call began";
            return Err(Failure(text.into()).into());
        }
        Ok(())
    }

    /// Resolves one slot.  Returns whether the tensor has another address.
    fn resolve_one(&mut self, slot: usize) -> Outcome<bool> {
        let py = self.gil.acquire();
        let (handle, plan) = (self.slots[slot].handle()?, self.plan);
        let Some(place) = self.pins.place(slot) else { return Ok(false) };
        self.pins.unfit.retain(|(other, _)| *other != slot);
        if let Some(form) = self.pins.form(place) {
            let now = Form::of(handle)?;
            if !form.fits(&now) {
                let text = format!("was {form} when the call began, and is {now}");
                self.mark_unfit(slot, &text);
                return Ok(false);
            }
        }
        let (storage, watched) = (handle.storage(), &mut self.pins.watched[place]);
        if storage != watched.storage {
            self.pins.former.push(std::mem::replace(&mut watched.pin, handle.pin(py)?));
            watched.storage = storage;
        }
        if !plan.wants_ptr[slot] {
            return Ok(false);
        }
        if !handle.is_dense() || !handle.is_backed() {
            self.mark_unfit(slot, "has lost its memory");
            return Ok(false);
        }
        let address = handle.data_ptr()?;
        Ok(std::mem::replace(&mut self.ptrs[slot], address) != address)
    }

    #[cold]
    fn mark_unfit(&mut self, slot: usize, what: &str) {
        let (plan, by) = (self.plan, self.next);
        self.pins.unfit.push((slot, format!("{} {what} since step {by} ({})", called(plan, slot), plan.labels[by])));
    }

    /// Fails if the step reads a tensor whose form its guards have not seen.  Operators accept any form, as in eager:
    /// an operator may restore the form.
    #[cold]
    pub(super) fn refuse(&self, step: &Step) -> Outcome<()> {
        if matches!(step, Step::Aten(_)) {
            return Ok(());
        }
        let (reads, _) = step.traffic();
        match self.pins.unfit.iter().find(|(slot, _)| reads.contains(slot)) {
            Some((_, text)) => Err(Failure(text.clone())),
            None => Ok(()),
        }
    }

    /// For an operator of torch that may give tensors other memory (`set_`, `resize_`): the forms of those whose
    /// address is read later.
    pub(super) fn forms(&self, slots: &[usize]) -> Outcome<Forms> {
        let wanted = |slot: &&usize| self.plan.wants_ptr[**slot] && self.plan.last[**slot] > self.next;
        slots.iter().filter(wanted).map(|slot| Ok((*slot, Form::of(self.handle(*slot)?)?))).collect()
    }

    /// After such an operator: compares the forms and resolves the moved tensors.
    pub(super) fn moved(&mut self, before: &Forms) -> Result<(), StepError> {
        for (slot, form) in before {
            let (slot, handle) = (*slot, self.handle(*slot)?);
            let now = Form::of(handle)?;
            if !form.fits(&now) {
                self.pins.unfit.retain(|(other, _)| *other != slot);
                self.mark_unfit(slot, &format!("was {form}, and is {now}"));
                continue;
            }
            if handle.data_ptr()? == self.ptrs[slot] && handle.is_backed() {
                continue;
            }
            self.gil.acquire();
            self.pins.forget(slot);
            self.watch(slot)?;
            self.resolve(std::iter::once(slot), self.next + 1)?;
        }
        Ok(())
    }

    /// Gives inputs and constants that are not dense a dense copy.  The copy may run foreign code, so the other tensors
    /// are pinned before it and resolved after it.
    #[cold]
    pub(super) fn materialise(&mut self) -> Result<(), StepError> {
        self.pin()?;
        for &slot in &*self.plan.outside {
            if self.plan.wants_ptr[slot] && !self.slots[slot].handle()?.is_dense() {
                self.gil.acquire();
                self.ptrs[slot] = self.slots[slot].address()?;
                self.pins.forget(slot);
            }
        }
        self.gil.acquire();
        self.resolve_all(0)
    }
}

fn called(plan: &super::Plan, slot: usize) -> String {
    match slot {
        _ if slot < plan.n_inputs => format!("input {slot}"),
        _ if plan.constants.iter().any(|constant| constant.slot == slot) => format!("the constant in slot {slot}"),
        _ => format!("the tensor in slot {slot}"),
    }
}

/// Drops inputs that belong to another owner.
pub(super) fn give_up(
    frame: &mut Frame<'_, '_>,
    taken: &crate::ffi::aten::pytype::InputList,
    inputs: &[usize],
) -> PyResult<()> {
    let last = |input: &usize| taken.is_last(*input);
    if frame.pins.begun || inputs.iter().any(last) {
        frame.pin()?; // freeing an input may call back
    }
    let py = frame.gil.acquire();
    for &input in inputs {
        frame.slots[input] = Slot::Empty;
        frame.pins.forget(input);
        taken.give_up(py, input);
    }
    Ok(())
}
