"""The table of facts about operators: a row an operator, and rows for families (`operator_facts.row`).

In: rules of the other files.  Out: rows that `operator_facts.facts_of` reads.

Example: ``row("mm.default", ordinary=True, layouts=layouts.mm, dtypes=static.of_floats)``.

A fact of "gather" holds for all overloads, and for `gather_`; a fact of "gather.default" for one overload.  An operator
of this package has its row beside its definition.
"""

from __future__ import annotations

from pycompiler.operators import argument_checks as checks
from pycompiler.operators import loss_shape_rules as losses
from pycompiler.operators import static_shape_rules as static
from pycompiler.operators import symbolic_shape_rules as layouts
from pycompiler.operators.operator_facts import row

# pointwise --------------------------------------------------------------------------------------------------------
row(
    "abs.* acos.* acosh.* asin.* asinh.* atan.* atanh.* ceil.* cos.* cosh.* digamma.* erf.* erfc.* erfinv.* exp.* exp2.* "
    "expm1.* floor.* frac.* isnan.* isposinf.* lgamma.* log.* log10.* log1p.* log2.* logical_not.* neg.* reciprocal.* "
    "relu.* round.* rsqrt.* sgn.* sigmoid.* sign.* signbit.* silu.* sin.* sinh.* sqrt.* square.* tan.* tanh.* trunc.* "
    "gelu.* mish.* hardsigmoid.* hardswish.* softplus.* celu.* elu.* leaky_relu.* bitwise_not.* angle.* i0.* isneginf.* "
    "selu.* special_entr.* special_erfcx.* special_i0e.* special_i1.* special_i1e.* special_log_ndtr.* special_ndtri.* "
    "clamp.default clamp_min.default clamp_max.default "
    "add.* sub.* mul.* div.* eq.* ne.* lt.* le.* gt.* ge.* fmod.* remainder.* maximum.* minimum.* fmax.* fmin.* atan2.* "
    "hypot.* copysign.* nextafter.* logaddexp.* heaviside.* xlogy.* floor_divide.* logical_and.* logical_or.* "
    "logical_xor.* bitwise_and.* bitwise_or.* bitwise_xor.* sigmoid_backward.* tanh_backward.* silu_backward.* "
    "hardsigmoid_backward.* hardswish_backward.* gelu_backward.* softplus_backward.* logaddexp2.* igamma.* igammac.* "
    "gcd.* lcm.* bitwise_left_shift.* bitwise_right_shift.* rsub.Scalar pow.Tensor_Scalar pow.Tensor_Tensor where.self "
    "where.ScalarOther lerp.Scalar lerp.Tensor addcmul.default addcdiv.default threshold.default hardtanh_backward.default "
    "elu_backward.default",
    strides="iterated",
)
row("threshold_backward.default leaky_relu_backward.default", strides="reversed")
row("hardtanh.default relu6.default nan_to_num.default deg2rad.default rad2deg.default", strides="like")
row("masked_fill.Scalar masked_fill.Tensor pow.Scalar mvlgamma.default", strides="contiguous")
row("hardshrink.default softshrink.default", strides="iterated", accepts=checks.holds_number)
row("hardshrink.default", composite_check=True)
row("logical_and logical_or logical_xor logical_not", any_dtype=True)
row("ceil copysign floor frac heaviside round sgn sign trunc", jumps=True)
row("fmod remainder floor_divide", jumps=True, divides=True)
row("div", divides=True)
row("abs clamp clamp_max clamp_min hardtanh maximum minimum neg relu", selects=True)
row("where masked_fill tril triu constant_pad_nd select_scatter slice_scatter flip", selects=True, cheap=True)

# views ------------------------------------------------------------------------------------------------------------
row("permute.default expand.default unsqueeze.default select.int slice.Tensor squeeze.dim squeeze.dims", view="meta")
row("alias.default detach.default t.default transpose.int unbind.int", view="meta")
row("as_strided.default", view="meta", accepts=checks.reaches)
row("view.default _unsafe_view.default", view="reshape")
row("split.Tensor split_with_sizes.default", view="split")
row("view_as_real.default view_as_complex.default _conj.default _neg_view.default unfold.default", view="bits")
row("as_strided view _unsafe_view", waits="never")
row(
    "view.default _unsafe_view.default permute.default expand.default slice.Tensor select.int squeeze.dim squeeze.dims "
    "squeeze.default unsqueeze.default transpose.int detach.default alias.default split.Tensor unbind.int "
    "split_with_sizes.default",
    any_layout="view",
)
row(
    "sum.dim_IntList mean.dim var_mean.correction var.correction amax.default amin.default",
    any_layout="fold",
)
row(
    "_to_copy.default cat.default constant_pad_nd.default "
    "max_pool2d_with_indices.default max_pool2d_with_indices_backward.default avg_pool2d.default "
    "avg_pool2d_backward.default _adaptive_avg_pool2d.default _adaptive_avg_pool2d_backward.default "
    "upsample_nearest2d.default upsample_nearest2d_backward.default upsample_bilinear2d.default "
    "upsample_bilinear2d_backward.default",
    any_layout="images",
)

# factories and copies ---------------------------------------------------------------------------------------------
row("zeros.default ones.default empty.memory_format", factory=static.made_empty)
row("empty_strided.default", factory=static.made_strided)
row("full.default", factory=static.made_full, converts=True)
row("scalar_tensor.default", factory=static.made_scalar, converts=True)
row("arange.start_step", factory=static.made_range)
row("empty_like.default zeros_like.default ones_like.default full_like.default", factory=static.made_like)
row("new_zeros.default new_ones.default new_empty.default new_full.default", factory=static.made_new)
row("full full_like zeros zeros_like ones ones_like new_zeros new_full arange scalar_tensor eye", cheap=True)
row("prims::convert_element_type prims::iota prims::broadcast_in_dim", cheap=True)
row("empty empty_like empty_strided new_empty new_empty_strided", cheap=True, unwritten=True)
row("empty_permuted", unwritten=True)
row("_to_copy", cheap=True, nearly_outer=True)
row("_to_copy.default", layouts=losses.to_copy, dtypes=static.of_request)
row("clone.default", layouts=layouts.clone, dtypes=static.of_request)
row("clone copy", cheap=True, selects=True, waits="never")
row("copy_.default zero_.default fill_.Scalar", fills=True)
row("fill zero cat", waits="never")
row("cat.default", ordinary=True, layouts=layouts.cat, dtypes=static.of_equals)
row("flip.default", corrected="copy")
row("select_scatter.default", ordinary=True, accepts=lambda x, y, dim, index: checks.fits(x.select(dim, index), y))
row("slice_scatter.default", ordinary=True, accepts=checks.fits_slice)
row("diagonal_scatter.default", accepts=lambda x, y, *where, **named: checks.fits(x.diagonal(*where, **named), y))
row("as_strided_scatter.default", accepts=checks.reaches_to_write)
row("as_strided_copy.default", accepts=checks.reaches)
# Bounds of a range, which kernels and graphs compute from either end.
row("linspace.default logspace.default", accepts=lambda *ends, **_: all(map(checks.is_finite, ends[:2])))

# products ---------------------------------------------------------------------------------------------------------
row("mm.default", ordinary=True, layouts=layouts.mm, dtypes=static.of_floats)
row("bmm.default", ordinary=True, layouts=layouts.bmm, dtypes=static.of_floats)
row("addmm.default", ordinary=True, layouts=layouts.addmm, dtypes=static.of_floats)
row("baddbmm.default", ordinary=True, layouts=layouts.baddbmm, dtypes=static.of_floats)
row("mm bmm addmm baddbmm", product=True, waits="never")
row("mv addmv dot _scaled_mm", waits="never")
row("_scaled_dot_product_flash_attention_for_cpu.default", layouts=layouts.attention, dtypes=static.of_attention)
row(
    "_scaled_dot_product_flash_attention_for_cpu_backward.default",
    layouts=losses.attention_backward, dtypes=static.of_attention,
)  # fmt: skip
row(
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_cudnn_attention_backward",
    waits="never",
)
row("mkldnn_rnn_layer.default mkldnn_rnn_layer_backward.default", probe="meta")  # only they can create their memory

# folds, norms and windows -----------------------------------------------------------------------------------------
row("sum.dim_IntList mean.dim", ordinary=True, layouts=layouts.fold, dtypes=static.by_kernel)
row("sum.default mean.default", layouts=layouts.fold_all, dtypes=static.by_kernel)
row("amax.default amin.default", ordinary=True, layouts=layouts.extreme, dtypes=static.by_kernel)
row("var_mean.correction", ordinary=True, layouts=layouts.var_mean)
row("var.correction", layouts=layouts.var)
row("linalg_vector_norm.default logit.default logit_.default", accepts=checks.holds_number)
row("_softmax.default", layouts=layouts.softmax, dtypes=static.of_softmax, accepts=checks.has_dimension)
row("_log_softmax.default", layouts=layouts.softmax, dtypes=static.of_softmax)
row("_softmax _log_softmax", nearly_outer=True)
row(
    "_softmax_backward_data.default _log_softmax_backward_data.default",
    layouts=layouts.softmax_backward, dtypes=static.of_softmax_backward,
)  # fmt: skip
row("native_layer_norm.default", layouts=layouts.layer_norm)
row("native_layer_norm native_layer_norm_backward native_batch_norm_backward native_group_norm", waits="never")
# Batch norms that write running statistics without saying so in their schemas, or without counting the write.  torch's
# rules for symbolic sizes call the latter.
row(
    "native_batch_norm.default _native_batch_norm_legit.default",
    layouts=layouts.batch_norm, accepts=checks.has_vectors, writes_unseen=True,
)  # fmt: skip
row("_batch_norm_with_update.default", accepts=checks.has_vectors, writes_unseen=True)
row("cudnn_batch_norm.default miopen_batch_norm.default", writes_unseen=True)
row("_native_batch_norm_legit_functional.default", layouts=layouts.batch_norm_functional)
row("_native_batch_norm_legit_no_training.default", layouts=layouts.batch_norm_inference, accepts=checks.has_vectors)
row("native_batch_norm _native_batch_norm_legit_no_training", corrected="norm")
row("_native_batch_norm_legit_functional _batch_norm_no_update", corrected="norm")
row("_native_batch_norm_legit _batch_norm_with_update", corrected="norm", nearly_outer=True)
row("convolution.default", layouts=layouts.convolution, dtypes=static.of_floats)
row("convolution_backward.default", layouts=layouts.convolution_backward)
row("convolution convolution_backward", waits="never")
row("max_pool2d_with_indices.default", layouts=layouts.max_pool, dtypes=static.of_pool)
row("max_pool2d_with_indices_backward.default", layouts=losses.max_pool_backward, dtypes=static.of_first)
row("avg_pool1d.default avg_pool3d.default", accepts=checks.has_windows)
row("avg_pool2d.default", layouts=layouts.avg_pool, accepts=checks.has_windows)
row("max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward", waits="never")
row("grid_sampler_2d.default grid_sampler_3d.default", accepts=checks.has_places)
row(
    "_adaptive_avg_pool2d _adaptive_avg_pool3d __lshift__ __rshift__ _fft_r2c _fft_c2c _prelu_kernel", nearly_outer=True
)
row("_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d", nearly_outer=True)
row("_upsample_bilinear2d_aa _upsample_bicubic2d_aa", nearly_outer=True)

# indices, sorts and losses ----------------------------------------------------------------------------------------
row("gather.default", ordinary=True, layouts=losses.gather, dtypes=static.of_first)
row("scatter.value", layouts=losses.scatter, dtypes=static.of_first)
row("embedding.default", ordinary=True, layouts=layouts.embedding, dtypes=static.of_first)
row("embedding_dense_backward.default", layouts=losses.embedding_backward, dtypes=static.of_first)
row("embedding_dense_backward", waits="never")
row("gather embedding index_add index_select scatter_add", raises="device", waits="never")
row("index index_put _index_put_impl", raises="device", waits="masks")  # positions of a mask are data
row("_unsafe_index", nearly_outer=True, waits="masks")
row("_unsafe_index_put", waits="masks")
row("masked_scatter", raises="device", waits="always")
row("scatter scatter_reduce index_copy index_fill index_reduce take put embedding_renorm", raises="device")
row("_embedding_bag _embedding_bag_forward_only max_unpool2d max_unpool3d", raises="device")
row("index_put.default", corrected="copy")
row("index_select.default", accepts=lambda x, dim, index: x.dim() != 0 or bool(index.numel() == 1))
row("index_reduce.default index_reduce_.default", accepts=checks.has_parts)
row("scatter_add.default scatter_add_.default", accepts=checks.has_targets)
row("sort.default sort.stable cummax.default cummin.default", accepts=checks.has_dimension)
row("bucketize.Tensor", accepts=lambda x, ends, **flags: ends.dim() == 1)
row("sort topk", waits="never")
row("isin", raises="host")  # for one element and some strides (a view in its kernel)
row("repeat_interleave bincount histc histogram searchsorted", raises="host")
row("_histogramdd_bin_edges _histogramdd_from_bin_cts fake_quantize_per_channel_affine_cachemask", raises="host")
row("segment_reduce _pack_padded_sequence", raises="host", waits="always")
row("nll_loss_forward.default", layouts=losses.nll_loss, dtypes=static.of_first)
row("nll_loss_backward.default", layouts=losses.nll_loss_backward, dtypes=static.of_first)
row("nll_loss_forward nll_loss2d_forward multilabel_margin_loss_forward multi_margin_loss", raises="device")
row("binary_cross_entropy", raises="device")
row("_ctc_loss", raises="host")
# The argument says where a loss changes from quadratic to linear.
row("smooth_l1_loss.default", accepts=lambda x, y, reduction=1, beta=1.0: bool(beta >= 0))
row("huber_loss.default", corrected="dtype", accepts=lambda x, y, reduction=1, delta=1.0: bool(delta > 0))
row("soft_margin_loss.default", corrected="dtype", accepts=checks.broadcasts_into)

# linear algebra ---------------------------------------------------------------------------------------------------
row("linalg_lstsq.default", probe="never")  # residuals are present or absent, depending on the rank
row("cholesky cholesky_inverse linalg_eig _linalg_eigvals _linalg_eigh _linalg_svd linalg_lstsq", raises="host")
row("lu_unpack linalg_pinv linalg_matrix_sqrth linalg_polar linalg_lu_solve", raises="host")

# random numbers ---------------------------------------------------------------------------------------------------
# A probability, deviation or rate in a tensor, whose values must be valid.
row("bernoulli.default bernoulli.out bernoulli.Tensor bernoulli_.Tensor poisson.default poisson.out", raises="device")
row("normal.float_Tensor normal.Tensor_Tensor multinomial.default multinomial.out", raises="device")
row("poisson binomial _standard_gamma _sample_dirichlet multinomial", draws_by_value=True)
row("cauchy exponential geometric log_normal", draws_apart=True)
row("bernoulli.p", layouts=losses.drawn, accepts=checks.of_numbers(lambda x, p: 0 <= p <= 1))
row(
    "bernoulli_.float",
    accepts=checks.of_numbers(lambda x, p=0.5: 0 <= p <= 1), draws_in_place=lambda p=0.5: 0 <= p <= 1,
)  # fmt: skip
row(
    "uniform_.default",
    accepts=checks.of_numbers(lambda x, low=0.0, high=1.0: low <= high),
    draws_in_place=lambda low=0.0, high=1.0: -1e4 <= low <= high <= 1e4,
)
row("exponential_.default", draws_in_place=lambda rate=1.0: rate > 0)
row("normal_.default", draws_in_place=lambda mean=0.0, std=1.0: std >= 0)
row("random_.from randint_like.low_dtype", accepts=checks.of_numbers(lambda x, low, high: low < high))
row("random_.to randint_like.default", accepts=checks.of_numbers(lambda x, high: high > 0))
row("rrelu_with_noise.default", corrected="packed")
row("native_dropout bernoulli uniform normal_functional exponential rand randn rand_like randn_like", waits="never")
row("randint randint_like", waits="never")

# checks -----------------------------------------------------------------------------------------------------------
row("_linalg_check_errors _assert_async _assert_tensor_metadata _functional_assert_async", checks=True)
row("_assert_scalar", checks=True, waits="always")
row("is_nonzero", waits="always")

# the way to a kernel -----------------------------------------------------------------------------------------------
row(
    "baddbmm addmv mv dot addbmm _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward native_batch_norm cudnn_batch_norm "
    "cudnn_batch_norm_backward upsample_nearest2d upsample_bilinear2d max_pool2d_with_indices max_unpool2d var_mean "
    "std std_mean empty_like new_empty new_empty_strided transpose squeeze roll lerp frac where clamp_min clamp_max "
    "isin logaddexp floor_divide special_erfcx lift_fresh index_add index_copy eye index_fill xlogy special_xlog1py "
    "gelu_backward addcmul addcdiv linspace linalg_cross _linalg_det linalg_lu_factor lu_unpack renorm unfold "
    "unfold_backward multi_margin_loss multilabel_margin_loss_forward",
    whole=True,
)
row(
    "mm addmm bmm baddbmm addbmm mv addmv dot vdot convolution convolution_backward _trilinear _cdist_forward "
    "_pdist_forward _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_cudnn_attention_backward",
    kept="products and convolutions",
)
row(
    "rand rand_like randn randn_like randint randint_like randperm native_dropout bernoulli multinomial normal "
    "uniform exponential",
    kept="random numbers are eager's",
)
row(
    "cumsum cumprod cummax cummin logcumsumexp sort topk median kthvalue mode masked_scatter scatter_reduce "
    "searchsorted bucketize unique_dim",
    kept="no scan or sort in the loop IR",
)
row(
    "avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d max_pool2d_with_indices_backward max_pool3d_with_indices "
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d adaptive_avg_pool1d col2im im2col "
    "grid_sampler_2d upsample_bilinear2d upsample_nearest2d _embedding_bag",
    kept="windows: ATen's kernels are vectorised",
)
row("scatter index_put index_copy", kept="for equal indices, the kernel chooses the value that stays")
row(
    "_native_batch_norm_legit _native_batch_norm_legit_no_training native_group_norm_backward",
    kept="decomposed before lowering",
)
row("_fft_c2r _fft_r2c _fft_c2c", kept="complex numbers")
row("nonzero _local_scalar_dense", kept="sizes that depend on data")
row("sym_storage_offset sym_is_contiguous _assert_async resize", kept="no loop")
