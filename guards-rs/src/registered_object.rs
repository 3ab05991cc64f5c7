//! What the engine needs of the package's Python.  `_native.hand_in` puts it here when the package is imported; nothing of the
//! package is imported by name.

use crate::ffi::object::{runtime_error, type_error, Owned, Res};
use crate::ffi::sync::GilCell;
use pyo3::prelude::*;

pub struct Handed {
    name: &'static str,
    object: GilCell<Option<Owned>>,
}

impl Handed {
    const fn new(name: &'static str) -> Handed {
        Handed { name, object: GilCell::new(None) }
    }

    pub fn known(&self) -> Option<Owned> {
        self.object.read(|o| o.clone())
    }

    pub fn get(&self) -> Res<Owned> {
        self.known().ok_or_else(|| runtime_error(&format!("nobody has handed {} to the engine", self.name)))
    }

    pub fn bound<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.get()?.into_py(py).into_bound(py))
    }

    pub fn put(&self, object: Option<Owned>) {
        drop(self.object.replace(object));
    }
}

macro_rules! handed {
    ($($name:literal $row:ident;)*) => {
        $(pub static $row: Handed = Handed::new($name);)*
        static ALL: &[&Handed] = &[$(&$row),*];
    };
}

handed! {
    // of `ir.guards`: what guards ask where they do not know the answer themselves
    "same_constant" SAME_CONSTANT;
    "keys_of" KEYS_OF;
    "set_holds" SET_HOLDS;
    "tensor_holds" TENSOR_HOLDS;
    "global_state" GLOBAL_STATE;
    "foreign_state" FOREIGN_STATE;
    "tensor_of" TENSOR_OF;
    "begun" BEGUN;
    "explain" EXPLAIN;
    "Scope" SCOPE;
    // of `ir.plan`, `ir.expr` and `ir.symbolic_node`: classes of what stands in a plan, and what is said of one that fails
    "SlotRef" SLOT_REF;
    "Expr" EXPR;
    "Real" REAL;
    "KERNEL_ERRORS" KERNEL_ERRORS;
    "OTHER_SIZES" OTHER_SIZES;
    "INFERENCE_TENSOR" INFERENCE_TENSOR;
    "plan_log" PLAN_LOG;
    "warn" WARN;
    "step_failed" STEP_FAILED;
    // of `runtime`: the binary of a kernel for addresses that are not aligned
    "unaligned" UNALIGNED;
    // of `errors` and `pipeline`: raised in mode "error" and for wrong outputs of a graph; called at a limit
    "RecompileError" RECOMPILE_ERROR;
    "BadOutputs" BAD_OUTPUTS;
    // ... what a graph raises where something that it assumed of data does not hold: nothing has happened yet that can be seen
    "Unfit" UNFIT;
    "on_limit" ON_LIMIT;
}

pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|row| row.name)
}

/// None takes back what was handed in.
pub fn put(name: &str, object: Option<Owned>) -> Res<()> {
    let Some(row) = ALL.iter().find(|row| row.name == name) else {
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(type_error(&format!("hand_in: the engine asks for no {name}; known: {known}")));
    };
    row.put(object);
    Ok(())
}
