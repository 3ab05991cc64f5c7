//! Attributes of one class that must be the same objects.  One comparison of the class's version covers all of them.

use super::id_is::IdIs;
use super::Kind;
use crate::ffi::mro::{version, ClassAttribute};
use crate::ffi::{Obj, Owned, Quiet, Stored};
use std::cell::Cell;

pub struct Methods {
    pub class: Stored,
    /// The version of the class when all guards last held.  0 is no version.
    seen: Cell<u32>,
    all: Vec<Method>,
}

pub struct Method {
    pub name: ClassAttribute,
    pub checks: Vec<(IdIs, u32)>,
    /// The guard to blame when the attribute is gone.
    pub fail: u32,
}

impl Methods {
    pub fn new(class: Obj, all: Vec<Method>) -> Methods {
        Methods { class: class.store(), seen: Cell::new(0), all }
    }

    /// Whether the class has the version of the last successful check.  A change of the class or of a base clears the
    /// version.
    #[inline]
    pub fn unchanged(&self) -> bool {
        let now = version(self.class.get());
        now != 0 && now == self.seen.get()
    }

    /// The indexes of the guards that this step checks.
    pub fn guards(&self) -> impl Iterator<Item = u32> + '_ {
        self.all.iter().flat_map(|method| method.checks.iter().map(|(_, index)| *index))
    }

    /// Ok, or the index of the guard that fails.
    pub fn hold(&self) -> Quiet<Result<(), u32>> {
        for method in &self.all {
            let found = method.name.find(self.class.get())?;
            if let Err(index) = method.check(found) {
                return Ok(Err(index));
            }
        }
        self.seen.set(version(self.class.get()));
        Ok(Ok(()))
    }

    /// The same check when the keys of the classes' dicts may run Python code.
    pub fn ask(&self, class: &Owned) -> Result<(), u32> {
        self.all.iter().try_for_each(|method| method.check(method.name.ask(class).as_ref().map(Owned::get)))
    }
}

impl Method {
    fn check(&self, found: Option<Obj>) -> Result<(), u32> {
        let found = found.ok_or(self.fail)?;
        let failing = self.checks.iter().find(|(check, _)| check.holds(found) != Ok(true));
        failing.map_or(Ok(()), |(_, index)| Err(*index))
    }
}
