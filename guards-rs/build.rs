//! Makes PyO3's `Py_3_12` and `Py_3_13` cfgs known here: interpreter frames differ between versions.

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
}
