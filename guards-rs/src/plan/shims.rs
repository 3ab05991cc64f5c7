//! Table of operators that the C ABI offers as plain functions, without dispatcher and boxing.
//!
//! A row is used only if the operator's schema in the loaded torch equals the row's string.  torch keeps the signature
//! of a published function for ever and derives it from the schema.  So equal strings mean equal signatures.

/// How the function returns its results.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    /// Through pointers that follow the arguments.
    Returns,
    /// Into a tensor that is the first argument.  Its sizes are `rows x columns` of the matrices at these two
    /// arguments; its dtype is the dtype of the first matrix.
    MatmulInto(usize, usize),
    /// The same with a leading batch dimension.
    BatchedInto(usize, usize),
}

use Form::{BatchedInto, MatmulInto, Returns};

type Row = (&'static str, &'static str, Form);

#[rustfmt::skip]
static TABLE: &[Row] = &[
    // matrix products
    ("aten::mm(Tensor self, Tensor mat2) -> Tensor", "aoti_torch_cpu_mm_out", MatmulInto(0, 1)),
    ("aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        "aoti_torch_cpu_addmm_out", MatmulInto(1, 2)),
    ("aten::bmm(Tensor self, Tensor mat2) -> Tensor", "aoti_torch_cpu_bmm_out", BatchedInto(0, 1)),
    ("aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        "aoti_torch_cpu_baddbmm_out", BatchedInto(1, 2)),
    // convolution, attention
    ("aten::convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, \
      bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor", "aoti_torch_cpu_convolution", Returns),
    ("aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, \
      SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) \
      -> (Tensor, Tensor, Tensor)", "aoti_torch_cpu_convolution_backward", Returns),
    ("aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0., \
      bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)",
        "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu", Returns),
    ("aten::_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, \
      Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? scale=None) \
      -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
        "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward", Returns),
    ("aten::_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)",
        "aoti_torch_cpu__fused_rms_norm", Returns),
    // pooling
    ("aten::_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor", "aoti_torch_cpu__adaptive_avg_pool2d", Returns),
    ("aten::_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor",
        "aoti_torch_cpu__adaptive_avg_pool2d_backward", Returns),
    ("aten::adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)", "aoti_torch_cpu_adaptive_max_pool2d", Returns),
    ("aten::avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, \
      bool count_include_pad=True, int? divisor_override=None) -> Tensor", "aoti_torch_cpu_avg_pool2d", Returns),
    ("aten::avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, \
      bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor", "aoti_torch_cpu_avg_pool2d_backward", Returns),
    ("aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, \
      bool ceil_mode=False) -> (Tensor, Tensor)", "aoti_torch_cpu_max_pool2d_with_indices", Returns),
    ("aten::max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, \
      int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor",
        "aoti_torch_cpu_max_pool2d_with_indices_backward", Returns),
    // gathering, sorting, scans
    ("aten::cat(Tensor[] tensors, int dim=0) -> Tensor", "aoti_torch_cpu_cat", Returns),
    ("aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", "aoti_torch_cpu_index_Tensor", Returns),
    ("aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
        "aoti_torch_cpu_index_put", Returns),
    ("aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", "aoti_torch_cpu_cumsum", Returns),
    ("aten::cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", "aoti_torch_cpu_cumprod", Returns),
    ("aten::logcumsumexp(Tensor self, int dim) -> Tensor", "aoti_torch_cpu_logcumsumexp", Returns),
    ("aten::cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)", "aoti_torch_cpu_cummax", Returns),
    ("aten::cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)", "aoti_torch_cpu_cummin", Returns),
    ("aten::sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)", "aoti_torch_cpu_sort", Returns),
    ("aten::sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)",
        "aoti_torch_cpu_sort_stable", Returns),
    ("aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)",
        "aoti_torch_cpu_topk", Returns),
    ("aten::kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
        "aoti_torch_cpu_kthvalue", Returns),
    ("aten::bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor",
        "aoti_torch_cpu_bucketize_Tensor", Returns),
    ("aten::masked_select(Tensor self, Tensor mask) -> Tensor", "aoti_torch_cpu_masked_select", Returns),
    ("aten::nonzero(Tensor self) -> Tensor", "aoti_torch_cpu_nonzero", Returns),
    ("aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)", "aoti_torch_cpu_native_dropout", Returns),
];

/// The function for an operator with exactly this schema.
pub fn lookup(schema: &str) -> Option<(&'static str, Form)> {
    TABLE.iter().find(|row| row.0 == schema).map(|row| (row.1, row.2))
}

/// The schemas of the table.
pub fn schemas() -> Vec<&'static str> {
    TABLE.iter().map(|row| row.0).collect()
}
