"""Parts of the programs of the training fuzzer: lines that use values `a` and `b`, and autograd Functions for some of
them.

A row that does not run on the chosen values, or gives no finite numbers, is left out of the program. `idx` and
`ids` are indices. `kron` is excluded: eager saves a view with a version counter of its own for it, so that writes
go unnoticed.
"""

from __future__ import annotations

from typing import Any

import torch

ONE = (
    "{a}.sin()", "{a}.exp()", "{a}.tanh()", "{a}.sigmoid()", "{a} * 2", "{a} + 1", "{a}.square()", "{a}.abs()", "-{a}",
    "{a}.relu()", "{a}.clamp(-1, 1)", "{a}.softmax(-1)", "{a}.log_softmax(0)", "{a}.cumsum(0)", "{a}.cumprod(-1)",
    "{a}.sort(-1).values", "{a}.logsumexp(0)", "{a}.norm()", "{a}.norm(dim=-1)", "{a}.prod(-1)", "{a}.prod()", "{a}.sum()",
    "{a}.mean(0)", "{a}.sum(-1, keepdim=True)", "{a}.var(0)", "{a}.std(-1)", "{a}.max()", "{a}.amax(0)", "{a}.max(-1).values",
    "{a}.min(0).values", "{a}.median()", "F.layer_norm({a}, {a}.shape[-1:])", "F.gelu({a})", "F.silu({a})", "F.softplus({a})",
    "F.elu({a})", "F.leaky_relu({a})", "F.normalize({a}, dim=-1)", "{a}.t()", "{a}.reshape(-1)", "{a}.view(-1)", "{a}[0]",
    "{a}[..., 1:]", "{a}[::2]", "{a}.unsqueeze(0)", "{a}.squeeze(0)", "{a}.flip(0)", "{a}.roll(1, 0)", "{a}.tril()",
    "{a}.diagonal()", "{a}.detach()", "{a}.clone()", "{a}.detach().clone()", "{a}.contiguous()", "{a}.chunk(2)[0]",
    "{a}.unbind(0)[1]", "{a}.split(2, -1)[0]", "{a}.unfold(-1, 2, 1)", "{a}.T.contiguous()", "{a}.gather(-1, idx)",
    "{a}.index_select(0, ids)", "{a}[ids]", "{a}.topk(2, -1).values", "{a}.masked_fill({a} > 0.5, 0.3)",
    "torch.fft.rfft({a}).abs()", "torch.fft.fft({a}).real", "torch.view_as_real({a}.to(torch.complex128))",
    "torch.view_as_complex({a}.reshape(-1, 2).contiguous()).abs()", "{a}.pow(3)", "{a}.pow(2.5)", "{a}.abs().sqrt()",
    "({a}.abs() + 0.5).log()", "({a}.abs() + 0.5).rsqrt()", "{a}.reciprocal()", "{a}.erf()", "{a}.sinh()", "{a}.atan()",
    "{a}.to(torch.float32).double()", "F.pad({a}, (1, 1))", "F.pad({a}.unsqueeze(0), (1, 1), mode='reflect')[0]",
    "{a}.diff()", "{a}.logcumsumexp(-1)", "{a}.cummax(-1).values", "{a}.nan_to_num()", "{a}.round()", "{a}.floor()",
    "{a}.sign()", "{a}.frac()", "{a}.repeat(2, 1)", "torch.linalg.svdvals({a})",
    "({a} @ {a}.T + 5 * torch.eye({a}.shape[0])).inverse()", "torch.linalg.det({a} @ {a}.T + torch.eye({a}.shape[0]))",
    "torch.linalg.solve({a} @ {a}.T + 5 * torch.eye({a}.shape[0]), {a})",
    "torch.linalg.cholesky({a} @ {a}.T + 5 * torch.eye({a}.shape[0]))",
    "torch.logdet({a} @ {a}.T + 5 * torch.eye({a}.shape[0]))",
    "F.cross_entropy({a}, torch.zeros({a}.shape[0], dtype=torch.long))",
    "F.nll_loss({a}.log_softmax(-1), torch.zeros({a}.shape[0], dtype=torch.long))", "F.glu({a})", "F.avg_pool1d({a}, 2)",
    "F.max_pool1d({a}, 2)", "F.adaptive_avg_pool1d({a}, 2)", "F.interpolate({a}[None], scale_factor=2)[0]",
    "F.interpolate({a}[None, None], scale_factor=2, mode='bilinear')[0, 0]", "F.instance_norm({a}[None])[0]",
    "F.batch_norm({a}, None, None, training=True)", "F.group_norm({a}[None], 1)[0]", "F.embedding(ids, {a})",
    "torch.renorm({a}, 2, 0, 1.0)", "{a}.std()", "torch.trace({a})", "torch.cov({a})", "torch.polygamma(1, {a}.abs() + 1)",
    "torch.lgamma({a}.abs() + 1)", "torch.digamma({a}.abs() + 1)", "torch.i0({a})", "torch.sinc({a})",
    "torch.logit({a}.sigmoid())", "F.hardswish({a})", "F.mish({a})", "F.softshrink({a})", "F.hardtanh({a})", "F.selu({a})",
    "F.logsigmoid({a})", "F.threshold({a}, 0.1, 0.2)", "torch.linalg.norm({a}, 'nuc')", "torch.linalg.norm({a}, 1)",
    "torch.linalg.vector_norm({a}, 3)", "torch.linalg.matrix_exp({a} @ {a}.T)", "torch.linalg.pinv({a})",
    "torch.linalg.qr({a} @ {a}.T + torch.eye({a}.shape[0])).R", "torch.linalg.eigvalsh({a} @ {a}.T)",
    "torch.linalg.slogdet({a} @ {a}.T + torch.eye({a}.shape[0])).logabsdet",
)  # fmt: skip
TWO = (
    "{a}.expand_as({b})", "torch.where({a} > 0, {a}, {b})", "{a}.lerp({b}, 0.3)", "torch.stack([{a}, {b}])",
    "torch.cat([{a}, {b}], -1)", "torch.cdist({a}, {b})", "F.cosine_similarity({a}, {b})", "F.pairwise_distance({a}, {b})",
    "F.mse_loss({a}, {b})", "F.smooth_l1_loss({a}, {b})", "F.l1_loss({a}, {b})", "F.huber_loss({a}, {b})",
    "F.kl_div({a}.log_softmax(-1), {b}.softmax(-1), reduction='batchmean')",
    "F.binary_cross_entropy_with_logits({a}, {b}.sigmoid())", "F.binary_cross_entropy({a}.sigmoid(), {b}.sigmoid())",
    "torch.einsum('ij,ij->i', {a}, {b})", "torch.einsum('ij,kj->ik', {a}, {b})", "F.linear({a}, {b})", "{a} @ {b}.T",
    "{a} @ {b}",
    "F.conv1d({a}[None], {b}[:, None, :2], groups=1) if {a}.shape[0] == 1 else F.conv1d({a}[:, None], {b}[:, None, :2])[:, 0]",
    "F.scaled_dot_product_attention({a}[None], {b}[None], {b}[None])[0]", "torch.scatter({a}, -1, idx, {b})",
    "{a}.scatter_add(0, idx, {b})", "{a}.index_add(0, ids, {b}[ids])", "{a}.index_copy(0, ids[:1], {b}[:1])",
    "torch.zeros_like({a}).index_put((ids,), {b}[ids])", "torch.atan2({a}, {b})", "torch.hypot({a}, {b})", "{a}.dist({b})",
    "torch.outer({a}.reshape(-1), {b}.reshape(-1))", "torch.special.xlogy({a}.abs(), {b}.abs() + 1)",
    "torch.logaddexp({a}, {b})", "F.prelu({a}, {b}[0, :1])", "{a} + {b}", "{a} * {b}", "{a} - {b}",
    "{a} / ({b}.abs() + 1)", "torch.maximum({a}, {b})", "torch.minimum({a}, {b})", "{a} * {b}.sum()", "{a} + {b}.mean()",
    "torch.where({b} > 0, {a}, {b})", "{a} ** ({b}.tanh() + 2)", "({a}.abs() + 1) ** {b}", "torch.addcmul({a}, {b}, {a})",
    "{a}.fmod({b}.detach() + 3)",
)  # fmt: skip
WRITES = (
    "{a}.mul_(2)", "{a}.add_({b})", "{a}.sin_()", "{a}.exp_()", "{a}[0] = {b}[0]", "{a}[0].mul_({b}[0])", "{a}.copy_({b})",
    "{a}.zero_()", "{a}.fill_(1.5)", "{a}.relu_()", "{a}.clamp_(-1, 1)", "{a}.mul_({b})", "{a}.t().mul_(2)",
    "{a}.masked_fill_({a} > 0, 0.5)", "{a}.view(-1)[1:].sigmoid_()", "{a} += 1", "{a} *= {b}", "{a}.detach().mul_(0.5)",
    "{a}.data.add_(0.25)", "{a}.tanh_()", "{a}.div_(3)",
)  # fmt: skip
INNER = (
    "{a}.register_hook(lambda g: g * 2)", "{a}.retain_grad()", "Two.apply({a}, {b})[0]", "Two.apply({a}, {b})[1]",
    "One.apply({a})", "Scale.apply({a}, 3.0)", "Sorted.apply({a})[0]", "Dirty.apply({a})",
    "checkpoint(lambda t: (t.sin() * {b}).exp().tanh(), {a}, use_reentrant=False)",
    "checkpoint(lambda t, u: (t * u).sin(), {a}, {b}, use_reentrant=False)",
    "torch.autograd.grad({a}.sum(), {b}, create_graph=True, allow_unused=True)[0]",
    "torch.autograd.grad({a}.sum(), {b}, retain_graph=True)[0]",
    "torch.autograd.grad({a}.square().sum(), {b}, create_graph=True)[0]",
    "torch.autograd.grad({a}, {b}, torch.ones_like({a}), create_graph=True)[0]",
    "torch.func.grad(lambda t: (t.sin() * {b}).sum())({a})",
    "torch.func.vjp(lambda t: t.exp() * {b}, {a})[1](torch.ones_like({a}))[0]",
    "torch.func.vmap(lambda t: t.sin() * t.sum())({a})", "torch.func.jvp(torch.sin, ({a},), ({b},))[1]",
    "F.dropout({a}, 0.3)", "torch.rand_like({a}) * {a}",
    "checkpoint(lambda t: F.dropout(t, 0.5).sin(), {a}, use_reentrant=False)", "{a}.requires_grad_()",
    "({a}.detach().requires_grad_() * 2)", "torch.autograd.functional.vjp(lambda t: t.sin(), {a}, {b}, create_graph=True)[1]",
    "Two.apply({a}, {a})[1]",
)  # fmt: skip

# Effects of the caller on results and inputs before gradients are computed.
EFFECTS = (
    "see.hook({y})", "see.hook({l})", "{y}.retain_grad()", "{y}.mul_(2)", "{y}.add_({l}.sum())", "{y}[0].mul_(3)", "see.behind({y}).detach().mul_(2)",
    "{x}.data.add_(0)", "{x}.detach().add_(0.1)", "{y}.detach_()", "see.hook({x})",
)  # fmt: skip
BEHIND = ("{l}.add_(0.1)", "see.behind({y}).mul_(2)")  # writes that autograd does not record


class One(torch.autograd.Function):
    """Saves its result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (result,) = ctx.saved_tensors
        return grad * result  # type: ignore[no-any-return]


class Two(torch.autograd.Function):
    """Two results, whose gradients may be missing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * y, x.sin()

    @staticmethod
    def backward(ctx: Any, of_product: torch.Tensor | None, of_sine: torch.Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        to_x = to_y = None
        if of_product is not None:
            to_x, to_y = (of_product * y).sum_to_size(x.shape), (of_product * x).sum_to_size(y.shape)
        if of_sine is not None:
            more = of_sine * x.cos()
            to_x = more if to_x is None else to_x + more
        return to_x, to_y


class Scale(torch.autograd.Function):
    """Returns a view, and takes a number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: float) -> torch.Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.by, None


class Sorted(torch.autograd.Function):
    """A result without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        values, places = x.sort(-1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        return values, places

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> torch.Tensor:
        (places,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(-1, places, grad)


class Dirty(torch.autograd.Function):
    """Writes its argument in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2
