//! Profile of a tree: the cost of each guard.  Each step is timed alone, many times, in the state that the earlier
//! steps left.
//!
//! The first guard below a path pays for reading the path.  Guards that share a step share its time.

use super::tree::{Op, Program, Tree};
use super::GuardWalk;
use crate::ffi::{Obj, Stored};
use std::time::{Duration, Instant};

/// Times in nanoseconds.
pub struct Profile {
    /// One check as a call makes it: by the fast path if there is one.
    pub call: f64,
    /// One check that evaluates every guard.
    pub all: f64,
    /// In the order of the guards.
    pub guards: Vec<f64>,
}

const ROUNDS: u32 = 32;
const BATCHES: u32 = 8;
/// After this time a step is measured well enough.
const ENOUGH: Duration = Duration::from_micros(200);

/// The least time of a round, over batches of rounds.
fn nanoseconds(mut work: impl FnMut()) -> f64 {
    let (start, mut least) = (Instant::now(), f64::INFINITY);
    for batch in 1..=BATCHES {
        let begun = Instant::now();
        (0..ROUNDS).for_each(|_| work());
        least = least.min(begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
        if batch > 2 && start.elapsed() > ENOUGH {
            break;
        }
    }
    least
}

impl Tree {
    /// None if a guard does not hold.
    pub fn profile(&self, n_guards: usize, locals: &[Option<Stored>], globals: Obj) -> Option<Profile> {
        let whole = |check: &dyn Fn(&mut GuardWalk) -> Result<(), u32>| {
            nanoseconds(|| {
                std::hint::black_box(check(&mut GuardWalk::default())).ok();
            })
        };
        let call = whole(&|walk| self.check(locals, globals, walk));
        let all = whole(&|walk| {
            *walk = self.walk();
            self.check_all(locals, globals, walk)
        });
        let mut guards = vec![0.0; n_guards];
        let mut pay = |index: u32, share: f64| {
            if let Some(paid) = guards.get_mut(index as usize) {
                *paid += share;
            }
        };
        let mut walk = self.walk();
        let steps = &self.program;
        let nothing = self.step_time(steps, (0, 0), locals, globals, &mut walk);
        for (i, op) in steps.ops.iter().enumerate() {
            steps.run(i, i + 1, locals, globals, &mut walk).ok()?;
            let spent = (self.step_time(steps, (i, i + 1), locals, globals, &mut walk) - nothing).max(0.0);
            let payers: Vec<u32> = match op {
                Op::Check { index, .. } => vec![*index],
                Op::Methods(methods) => methods.guards().collect(),
                Op::Local { fail, .. } | Op::Read { fail, .. } => vec![*fail],
                Op::Globals | Op::Const(_) | Op::Record { .. } => vec![],
            };
            payers.iter().for_each(|index| pay(*index, spent / payers.len() as f64));
        }
        for relate in &self.relations {
            let values: Vec<Obj> =
                relate.records.iter().filter_map(|r| walk.records[*r as usize].as_ref()).map(Stored::get).collect();
            pay(
                relate.index,
                nanoseconds(|| {
                    std::hint::black_box(relate.relation.holds(&values));
                }),
            );
        }
        Some(Profile { call, all, guards })
    }

    fn step_time(
        &self,
        steps: &Program,
        (start, end): (usize, usize),
        locals: &[Option<Stored>],
        globals: Obj,
        walk: &mut GuardWalk,
    ) -> f64 {
        nanoseconds(|| {
            std::hint::black_box(steps.run(start, end, locals, globals, std::hint::black_box(&mut *walk))).ok();
        })
    }
}
