//! Python objects of the package that the engine needs.  `_native.hand_in` stores them here when the package is
//! imported.  The engine imports nothing of the package by name.

use crate::ffi::object::{runtime_error, type_error, Owned, Res};
use crate::ffi::sync::GilCell;
use pyo3::prelude::*;

/// One Python object of the package, by name.
pub struct RegisteredObject {
    name: &'static str,
    object: GilCell<Option<Owned>>,
}

impl RegisteredObject {
    const fn new(name: &'static str) -> RegisteredObject {
        RegisteredObject { name, object: GilCell::new(None) }
    }

    pub fn known(&self, py: Python<'_>) -> Option<Owned> {
        self.object.read(py, |o| o.clone())
    }

    pub fn get(&self, py: Python<'_>) -> Res<Owned> {
        self.known(py).ok_or_else(|| runtime_error(&format!("{} was never handed to the engine", self.name)))
    }

    pub fn bound<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.get(py)?.into_py(py).into_bound(py))
    }

    pub fn put(&self, py: Python<'_>, object: Option<Owned>) {
        drop(self.object.replace(py, object));
    }
}

macro_rules! registered {
    ($($name:literal $row:ident;)*) => {
        $(pub static $row: RegisteredObject = RegisteredObject::new($name);)*
        static ALL: &[&RegisteredObject] = &[$(&$row),*];
    };
}

registered! {
    // `ir.guards`: functions that guards call when native code cannot decide
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
    // `ir.plan`, `symbolic.expr` and `symbolic.symbolic_node`: classes of the parts of a plan, and messages of failed
    // plans
    "SlotRef" SLOT_REF;
    "Expr" EXPR;
    "Real" REAL;
    "KERNEL_ERRORS" KERNEL_ERRORS;
    "OTHER_SIZES" OTHER_SIZES;
    "INFERENCE_TENSOR" INFERENCE_TENSOR;
    "plan_log" PLAN_LOG;
    "warn" WARN;
    "step_failed" STEP_FAILED;
    // `runtime`: returns the binary of a kernel for unaligned addresses
    "unaligned" UNALIGNED;
    // `errors` and `pipeline`: exceptions of mode "error" and of wrong graph outputs, and a callback at a limit
    "RecompileError" RECOMPILE_ERROR;
    "BadOutputs" BAD_OUTPUTS;
    // the exception of a graph when an assumption about data does not hold; raised before any visible effect
    "Unfit" UNFIT;
    "on_limit" ON_LIMIT;
}

pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|row| row.name)
}

/// None removes the object.
pub fn put(py: Python<'_>, name: &str, object: Option<Owned>) -> Res<()> {
    let Some(row) = ALL.iter().find(|row| row.name == name) else {
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(type_error(&format!("hand_in: unknown name {name}; known: {known}")));
    };
    row.put(py, object);
    Ok(())
}
