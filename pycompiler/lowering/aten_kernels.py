"""ATen operators that stay ATen kernels on purpose, by reason: they get no perf hint."""

from __future__ import annotations

KEPT: dict[str, frozenset[str]] = {
    reason: frozenset(names.split())
    for reason, names in {
        "products and convolutions": """
            mm addmm bmm baddbmm addbmm mv addmv dot vdot convolution convolution_backward _trilinear _cdist_forward
            _pdist_forward _scaled_dot_product_flash_attention_for_cpu
            _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention
            _scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention
            _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention
            _scaled_dot_product_cudnn_attention_backward
        """,
        "random numbers are eager's": """
            rand rand_like randn randn_like randint randint_like randperm native_dropout bernoulli multinomial normal
            uniform exponential
        """,
        "no scan or sort in the loop IR": """
            cumsum cumprod cummax cummin logcumsumexp sort topk median kthvalue mode masked_scatter scatter_reduce
            searchsorted bucketize unique_dim
        """,
        "windows: ATen's kernels are vectorised": """
            avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d max_pool2d_with_indices_backward
            max_pool3d_with_indices _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
            adaptive_avg_pool1d col2im im2col grid_sampler_2d upsample_bilinear2d upsample_nearest2d _embedding_bag
        """,
        "for equal indices, the kernel chooses the value that stays": "scatter index_put index_copy",
        "decomposed before lowering": """
            _native_batch_norm_legit _native_batch_norm_legit_no_training native_group_norm_backward
        """,
        "complex numbers": "_fft_c2r _fft_r2c _fft_c2c",
        "sizes that depend on data": "nonzero _local_scalar_dense",
        "no loop": "sym_storage_offset sym_is_contiguous _assert_async resize_",
    }.items()
}

KEPT_NAMES = frozenset().union(*KEPT.values())
