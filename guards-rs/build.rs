//! Enables PyO3's cfgs `Py_3_12` and `Py_3_13` in this crate, because interpreter frames differ between versions.

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
}
