"""Tensors: methods, attributes, indexing, in-place operators, constructors, shapes, random numbers, numpy."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from capture.harness import ANY, case

import pycompiler

X = torch.arange(6.0).reshape(2, 3)
V = torch.arange(4.0)
M = torch.tensor([[True, False, True], [False, True, True]])
I = torch.tensor([0, 1, 1])
G = torch.arange(4.0).requires_grad_()


@case(X)
def divmod_of_tensor(x):
    try:
        divmod(x, 2)
    except TypeError as e:
        return x + 1, str(e)


@case(X)
def methods(x):
    return (
        x.sin(), x.sum(), x.sum(dim=1), x.mean(0, keepdim=True), x.max(), x.max(dim=1), x.argmax(-1), x.t(), x.transpose(0, 1), x.view(3, 2),
        x.reshape(-1), x.flatten(), x.unsqueeze(0), x.permute(1, 0), x.expand(2, 2, 3), x.repeat(2, 1), x.contiguous(), x.clone(), x.detach(),
        x.to(torch.float64), x.float(), x.int(), x.bool(), x.type(torch.float16), x.clamp(1, 3), x.pow(2), x.abs(), x.softmax(-1), x.cumsum(0),
        x.chunk(3, dim=1), x.split([1, 2], dim=1), x.unbind(0), x.topk(2), x.sort(descending=True), x.std(), x.norm(), x.var(dim=0), x.prod(),
        x.masked_fill(x > 2, 0.0), x.gather(1, torch.zeros(2, 1, dtype=torch.int64)), x.squeeze(), x.roll(1, 0), x.flip(0), x.tril(), x.diag(),
        x.new_zeros(2), x.new_ones((2,)), x.new_full((2,), 3.0), x.new_tensor([1.0, 2.0]), x.type_as(x), x.expand_as(x), x.addmm(x[:, :2], x),
        x.matmul(x.t()), x.mm(x.T), x.dot if False else None, x.where(x > 1, -x), x.isnan(), x.any(), x.all(), x.logsumexp(1), x.narrow(1, 0, 2),
    )  # fmt: skip


@case(X, breaks=ANY, recompiles=5)
def copies_of_tensors(x):
    shallow, deep = copy.copy(x), copy.deepcopy([x, x + 1])
    return shallow, deep, shallow.data_ptr() == x.data_ptr(), deep[0].data_ptr() == x.data_ptr(), type(shallow)


@case(X, breaks=ANY)
def memory_written_by_python(x):
    y = x.clone()
    y.apply_(math.sqrt if False else abs)
    y.map_(x, max)
    try:
        y.apply_(2)
    except TypeError as e:
        return y, str(e)


@case(X)
def place_in_the_storage(x):
    y = x + 1
    return y, x.storage_offset(), x[1:].storage_offset()


@case(X)
def attributes(x):
    return (
        x + 1, x.shape, x.dtype, x.device, x.ndim, x.requires_grad, x.is_leaf, x.T, x.mT, x.layout, x.is_cuda, x.grad, x.grad_fn, x.itemsize,
        x.nbytes, x.size(), x.size(0), x.size(-1), x.dim(), x.numel(), x.stride(), x.stride(0), x.is_contiguous(), x.element_size(),
        x.is_floating_point(), x.ndimension(), x.nelement(), x.is_complex(), x.get_device(), x.shape[0] * 2, x.real, x.data,
        x.is_sparse, x.is_quantized, x.is_meta, x.output_nr, x.device.type, x.device.index, x.dtype.is_floating_point, x.dtype.itemsize,
    )  # fmt: skip


@case(X)
def size_arithmetic(x):
    s = x.shape
    b, *rest = s
    return (
        x + 1, s + (1,), s[1:], s[:-1] + (4,), len(s), s.numel(), tuple(s), list(s), s == (2, 3), s[0] * s[1], b, rest, torch.Size([1, 2]),
        x.view(*s[:1], -1), x.new_zeros(s), torch.zeros(s), s * 2, 3 in s, max(s), math.prod(s), sum(s), [*s, 1], s.index(3), hash(s) == hash((2, 3)),
        (1, *s), s != x.T.shape, s[-1], x.reshape(s[::-1]), x.reshape(s[0] * s[1]), isinstance(s, tuple), s.count(2), x.shape is x.shape, repr(s),
    )  # fmt: skip


@case(X)
def indexing(x):
    return (
        x[0], x[-1], x[0, 1], x[:, 1], x[..., 0], x[None], x[:, None, :], x[1:], x[:, ::2], x[0][1], x[:, -2:], x[..., None], x[()], x[0:1, 1:3],
        x[True], x[[0, 1]], x[:, [0, 2]], x[[0, 1], [1, 2]], x[slice(0, 1)], x[(0, 1)], x[0, ...],
    )  # fmt: skip


@case(X, I)
def indexing_by_tensor(x, i):
    return x[:, i], x[i[:2]], x[i, i], x.index_select(1, i), torch.take(x, i)


@case(X, I, breaks=ANY)
def indexing_by_scalar_tensor(x, i):
    return x[i[0]] + 1


@case(X, M, breaks="dynamic-output-shape")
def indexing_by_mask(x, m):
    return x[m] * 2


@case(X, breaks="dynamic-output-shape")
def nonzero(x):
    return torch.nonzero(x > 2) + 1


@case(X, M)
def store_by_mask(x, m):
    x[m] = 0
    y = x.clone()
    y[y > 3] = -1.0
    return y


@case(X, I)
def stores(x, i):
    x[0] = 7
    x[:, 1] = x[:, 1] * 2
    x[..., -1] += 1
    x[1, 0] = torch.tensor(9.0)
    x[:, i] = 3.0
    y = torch.zeros(3, 3)
    y[1:, :2] = x[:, :2]
    y[0, 0] -= 1
    return y


@case(X)
def inplace_on_input(x):
    x.add_(1)
    x *= 2
    x -= 1
    x /= 3
    x.mul_(2).sub_(1)
    x.clamp_(min=0)
    return x.sum()


@case(X)
def inplace_returns_self(x):
    y = x.add_(1)
    y.zero_()
    return y is x, x + 1, y


@case(X)
def inplace_on_intermediate(x):
    y = x + 1
    z = y
    y += 1
    y.relu_()
    y[0].fill_(5)
    return y, z is y


@case(X)
def inplace_through_view(x):
    v = x[0]
    v.add_(10)
    w = x.view(-1)
    w[2] = 100
    return x * 1


@case(X)
def views_returned(x):
    y = x + 1
    return y, y[0], y.t(), x[1], x.view(-1)


@case(X)
def inplace_operators(x):
    a = x.long()
    a |= 1
    a &= 6
    a ^= 2
    a <<= 1
    a >>= 1
    a //= 1
    a %= 5
    b = x + 1
    b **= 2
    return a, b


@case(X)
def out_argument(x):
    out = torch.empty(2, 3)
    r = torch.sin(x, out=out)
    torch.add(x, 1, out=x)
    return out, r is out


@case(X, [torch.zeros(2, 3)])
def copy_into_list_member(x, buf):
    buf[0].copy_(x * 2)
    return buf[0].sum()


@case(X)
def operators(x):
    return (
        x + 1, 1 + x, x - x, 2 - x, x * 2.5, x / 2, 1 / (x + 1), x // 2, 7 // (x + 1), x % 2, x**2, 2**x, -x, +x, abs(x), x @ x.t(), x == x, x != 1,
        x < 2, x >= 2, 3 > x, ~(x > 1), (x > 1) & (x < 4), (x > 1) | (x < 1), (x > 1) ^ (x < 4), x.long() << 1, x.long() >> 1,
        pow(x, 2), True + x, x + True, x * 1j, x.__add__(1), x.__radd__(1), x.add(1, alpha=2), 10 % (x + 1), x.__neg__(),
    )  # fmt: skip


@case(X)
def compare_with_none(x):
    return x + 1, x is None, x is not None, x == None, None != x  # noqa: E711


@case(X)
def iteration(x):
    a, b = x
    rows = [r * 2 for r in x]
    c, *d = x[0]
    return (
        a + b,
        rows,
        c,
        d,
        len(x),
        list(x),
        [i for i, _ in enumerate(x)],
        list(zip(x, x)),
        max(len(r) for r in x),
        sum(x),
        torch.stack(tuple(x)),
    )


@case(torch.tensor(3.0), breaks=ANY)
def zero_dim(s):
    out = []
    for f in (lambda: len(s), lambda: list(s), lambda: s[0]):
        try:
            f()
        except (TypeError, IndexError) as e:
            out.append(type(e).__name__)
    return s + 1, s.shape, s.dim(), out


@case(X)
def constructors(x):
    n = len(x)
    return (
        torch.zeros(2, 3), torch.ones(n), torch.full((2,), 7.0), torch.arange(5), torch.arange(0, 1, 0.25), torch.linspace(0, 1, 3), torch.eye(2),
        torch.tensor([1, 2]), torch.tensor(3.5), torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.zeros_like(x), torch.ones_like(x, dtype=torch.int32),
        torch.empty_like(x).fill_(1), torch.full_like(x, 2), torch.tensor(True), torch.as_tensor([1, 2]), torch.scalar_tensor(2.0), torch.tril(torch.ones(2, 2)),
        torch.zeros(2, dtype=torch.bool), torch.zeros((2, 2), device="cpu"), torch.arange(n, device=x.device, dtype=x.dtype), torch.tensor([]),
        torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij"), torch.logspace(0, 1, 2), torch.triu_indices(2, 2), x + torch.tensor([1.0, 2, 3]),
        torch.complex(x, x), torch.tensor(n), torch.tensor([True, False]), torch.tensor(1j), torch.zeros(0), torch.zeros(x.shape), torch.zeros(size=(1,)),
    )  # fmt: skip


@case(X)
def tensor_of_scalars(x):
    k = 2.5
    return torch.tensor(k) * x, torch.tensor([k, k + 1]), torch.tensor([[i, j] for i in range(2) for j in range(2)])


@case(X, breaks=ANY)
def tensor_of_tensors(x):
    return torch.tensor([x.sum(), 1.0]), torch.as_tensor(x), torch.asarray(x)


@case(X)
def dtypes_and_devices(x):
    d = torch.float64
    dev = torch.device("cpu")
    return (
        x.to(d), x.to(dev), x.to("cpu", torch.float16), x.double().dtype == d, x.dtype in (torch.float32, d), dev.type, dev == torch.device("cpu"),
        torch.finfo(x.dtype).max, torch.finfo(torch.float16).min, torch.iinfo(torch.int8).max, d.is_floating_point, str(d), str(dev), repr(dev),
        torch.float32 is x.dtype, {torch.float32: 1}[x.dtype], torch.promote_types(torch.int32, torch.float16), torch.result_type(x, 1), x.to(x.dtype) is x,
        torch.get_default_dtype(), torch.finfo(x.dtype).eps, x.to(dtype=torch.int64), x.cpu() is x, torch.can_cast(torch.float32, torch.int32),
        x.is_floating_point(), torch.is_floating_point(x), torch.is_tensor(x), torch.is_tensor(1), torch.numel(x), torch.is_complex(x), torch.float,
    )  # fmt: skip


@case(X)
def torch_functions(x):
    return (
        torch.cat([x, x]), torch.stack([x, x], 1), torch.where(x > 1, x, 0.0), torch.einsum("ij,kj->ik", x, x), torch.matmul(x, x.T), torch.max(x, 1),
        torch.sum(x, dim=(0, 1)), torch.broadcast_tensors(x, x[0]), torch.split(x, 1), torch.tensor_split(x, 2), torch.outer(x[0], x[1]), torch.sigmoid(x),
        torch.allclose(x, x) if False else None, torch.cumsum(x, 0), torch.sort(x), torch.topk(x, 1), torch.squeeze(x), torch.bmm(x[None], x.T[None]),
        torch.nn.functional.relu(x), torch.clamp(x, max=2), torch.addmm(x, x[:, :2], x), torch.vstack((x, x)), torch.hstack([x, x]), torch.chunk(x, 2),
        torch.linalg.norm(x), torch.fft.fft(x).real, torch.special.expit(x), torch.minimum(x, x * 2), torch.logical_and(x > 0, x < 3), torch.atleast_2d(x[0]),
        torch.flatten(x), torch.movedim(x, 0, 1), torch.cdist(x, x), torch.block_diag(x, x), torch.cartesian_prod(x[0], x[1]), torch.norm(x), torch.unbind(x),
        torch.tensordot(x, x, dims=([0], [0])), torch.rot90(x), torch.aminmax(x), torch.std_mean(x), torch.var(x, 0, correction=0), torch.lerp(x, x, 0.5),
        torch.meshgrid([x[0], x[1]], indexing="xy"), torch.diff(x), torch.searchsorted(x[0], x[0]), torch.bucketize(x, x[0]), torch.nan_to_num(x),
    )  # fmt: skip


@case(X)
def named_results(x):
    m = x.max(dim=1)
    values, indices = x.min(dim=0)
    s = torch.sort(x)
    return m.values, m.indices, values, indices, s.values + 1, s[1], len(m), m


@case(X, breaks="data-dependent-value")
def item(x):
    n = x.sum().item()
    return x + n


@case(X, breaks="data-dependent-value")
def tolist(x):
    return x.tolist(), x * 2


@case(X, breaks="data-dependent-value")
def float_of_tensor(x):
    return float(x[0, 1]) + 1, int(x[1, 1]), x * 2


@case(X, breaks=ANY)
def tensor_as_index(x):
    i = x[0, 2].long()
    return [1, 2, 3][i], x[i - 1], range(i)


@case(X, breaks=ANY)
def tensor_predicates(x):
    return torch.equal(x, x), torch.allclose(x, x), x.equal(x), bool(x[0, 0]), x + 1


@case(X, breaks=ANY)
def tensor_in_list(x):
    y = torch.zeros(1)
    return x in [x, y], x + 1


@case(X)
def tensor_identity(x):
    y = x
    z = x + 0
    return x is y, x is z, z is not None, [x][0] is x, (x.view(-1) is x), z


@case(X)
def tensor_as_dict_key(x):
    d = {x: 1}
    return d[x], x in d, x + 1


@case(X)
def tensor_in_set(x):
    y = x + 1
    return len({x, y, x}), y


@case(G)
def autograd_flags(x):
    y = x * 2
    return (
        y,
        y.requires_grad,
        y.detach().requires_grad,
        x.is_leaf,
        y.is_leaf,
        x.detach() + 1,
        x.data * 3,
        (x > 0).requires_grad,
        y.sum(),
    )


@case(G, breaks=ANY)
def backward_inside(x):
    y = (x * x).sum()
    y.backward()
    return x.grad


@case(G, breaks=ANY)
def autograd_grad_inside(x):
    y = (x * x).sum()
    (g,) = torch.autograd.grad(y, x)
    return g + 1


@case(G, breaks=ANY)
def requires_grad_inside(x):
    w = torch.ones(4).requires_grad_()
    y = x.detach().clone()
    y.requires_grad = True
    return (w * y * x).sum()


@case(V, breaks=ANY)
def grad_assigned(x):
    x.requires_grad_()
    x.grad = torch.ones(4)
    return x * 2


def _with_grad():
    t = torch.arange(4.0).requires_grad_()
    t.grad = torch.ones(4)
    return t


W = _with_grad()


@case(W)
def grad_read(x):
    return x.grad * 2, x.grad is not None


@case(W)
def grad_update(x):
    with torch.no_grad():
        x -= 0.1 * x.grad
        x.grad.zero_()
    return x * 1


@case(V, breaks=ANY)
def grad_to_none(x):
    x.grad = None
    return x + 1


@case(V)
def tensor_attribute(x):
    y = x + 1
    y.note = "n"
    return y * 2, y, y.note


def _noted():
    t = torch.arange(4.0)
    t.note = 3
    return t


@case(_noted())
def tensor_attribute_read(x):
    return x * x.note, hasattr(x, "zzz")


@case(V, breaks=ANY)
def tensor_data_assignment(x):
    x.data = x.data * 2
    return x + 1


@case(V)
def tensor_data_inplace(x):
    x.data.mul_(2)
    return x + 1


@case(V)
def random_functions(x):
    torch.manual_seed(3)
    a = torch.rand(4)
    b = torch.randn_like(x)
    c = torch.randint(0, 10, (3,))
    d = torch.nn.functional.dropout(x, 0.5)
    e = torch.bernoulli(torch.full((4,), 0.5))
    return a, b, c, d, e, torch.randperm(5), torch.normal(0.0, 1.0, (2,))


@case(V)
def random_unseeded(x):
    return x + torch.rand(4), torch.randn(2), torch.rand_like(x).mul_(2), x.clone().uniform_(), x.clone().normal_()


@case(V)
def random_result_unused(x):
    torch.rand(3)
    y = torch.rand(2)
    return y + 1


@case(V, breaks=ANY)
def random_generator(x):
    g = torch.Generator().manual_seed(1)
    return x + torch.rand(4, generator=g)


@case(V, breaks=ANY)
def rng_state(x):
    s = torch.get_rng_state()
    a = torch.rand(2)
    torch.set_rng_state(s)
    return a, torch.rand(2), x + 1


@case(V, breaks=ANY)
def python_random(x):
    import random

    return x + random.random(), random.randint(0, 5)


@case(V, breaks=ANY)
def numpy_calls(x):
    a = np.arange(4.0)
    return x + torch.from_numpy(a), np.sum(a)


@case(V, breaks=ANY)
def numpy_conversion(x):
    return x.numpy() + 1, torch.as_tensor(np.ones(2)) + 1, x.cpu().detach().numpy().sum()


@case(V, np.float32(2.5), np.ones(4), breaks=ANY)
def numpy_arguments(x, s, a):
    return x * float(s), a + 1


@case(V, np.int64(3), breaks=ANY)
def numpy_scalar_argument(x, n):
    return x + n


@case(V, breaks=ANY)
def functional_transforms(x):
    return torch.func.vmap(lambda v: v * 2)(x), torch.func.grad(lambda v: (v * v).sum())(x)


@case(V, breaks=ANY)
def sparse_tensor(x):
    s = torch.eye(4).to_sparse()
    return torch.sparse.mm(s, x[:, None])


@case(torch.eye(3).to_sparse(), breaks=ANY, recompiles=1)
def sparse_argument(s):
    return s.to_dense() + 1


@case(torch.ones(2, 2, dtype=torch.complex64))
def complex_tensor(z):
    return z.real + z.imag, z.conj() * 2, z.abs(), torch.view_as_real(z), z + 1j, z.is_complex(), z.angle()


class Tagged(torch.Tensor):
    pass


@case(V, breaks=ANY)
def tensor_subclass(x):
    return x.as_subclass(Tagged) * 2


@case(make=lambda: (torch.ones(3).as_subclass(Tagged),))
def tensor_subclass_argument(x):
    return x * 2


@case(V)
def method_by_getattr(x):
    return (
        getattr(x, "sin")(),
        getattr(torch, "cos")(x),
        torch.Tensor.add(x, 1),
        torch.Tensor.sum(x),
        getattr(x, "size")(0),
    )


@case(V)
def bound_tensor_method(x):
    f = x.add
    g = [x.sin, x.cos]
    return f(1), [h() for h in g], list(map(x.__mul__, (1, 2)))


@case(V)
def shape_dependent_code(x):
    n = x.shape[0]
    mask = torch.tril(torch.ones(n, n, dtype=torch.bool))
    pos = torch.arange(n)
    return (
        x.masked_fill(~mask, float("-inf")),
        pos[:, None] - pos[None, :],
        x.new_zeros(n, n + 1),
        torch.zeros(n // 2, n * 2),
    )


@case(V)
def empty_and_scalar_shapes(x):
    return (
        x[:0],
        x.new_empty(0),
        torch.zeros(()),
        torch.ones(1, 0, 2).sum(),
        x.reshape(4, 1, 1).squeeze(),
        x.sum()[None],
    )


@case(V)
def dead_code(x):
    y = x * 100
    z = torch.stack([y, y])
    del y, z
    return x + 1


@case(V)
def only_mutation(x):
    x.add_(1)


@case(V)
def no_tensor_result(x):
    return x.shape[0] * 2


@case(3, 4)
def no_tensor_at_all(a, b):
    return a * b


@case(V, V[1:3])
def overlapping_inputs(x, y):
    y.add_(1)
    return x * 2


@case(torch.ones(3, 4).t())
def strided_input(x):
    return x + 1, x.contiguous().stride(), x.is_contiguous(), x.stride()


@case(V.to(torch.bfloat16), V.half(), V.double(), V.int(), V.bool())
def many_dtypes(a, b, c, d, e):
    return a + 1, b * 2, c / 3, d // 2, e & True, a + c, d + b, e + d


@case(V, breaks=ANY)
def operator_errors(x):
    try:
        return x @ torch.ones(3)
    except RuntimeError:
        return x + 1


@case(V, breaks=ANY)
def shape_error_leaves(x):
    return x.view(3, 3)


@case(V, breaks=ANY)
def index_error(x):
    try:
        return x[10]
    except IndexError as e:
        return x + 1, str(e)


@case(V, breaks=ANY)
def type_error_of_operator(x):
    try:
        return x + "a"
    except TypeError:
        return x + 2


@case(V)
def checkpoint_like_recompute(x):
    def block(v):
        return torch.sin(v) * v

    return block(block(x))


@case(V)
def torch_size_from_args(x):
    def f(*shape):
        return torch.zeros(*shape), torch.zeros(shape), x.reshape(*shape)

    return f(2, 2)


@case(V)
def custom_function_of_torch(x):
    return (
        torch.nn.functional.layer_norm(x, x.shape),
        torch.nn.functional.one_hot(x.long(), 5),
        torch.nn.functional.pad(x, (1, 1)),
    )


def is_in_onnx_export():
    return "not torch's"


is_in_onnx_export.__module__ = "torch.onnx"


@case(V)
def function_known_by_name_and_identity(x):
    return x + 1 if torch.onnx.is_in_onnx_export() else x + 2


@case(V, breaks=ANY)
def function_with_the_name_of_a_known_one(x):
    return x + 1, is_in_onnx_export()


@case(V)
def tensor_shape_unpack_star(x):
    b, *_ = x.reshape(2, 2).shape
    return x.new_ones(b)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return v * v

    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        return g * 2 * v


@case(G, breaks=ANY)
def autograd_function(x):
    return Square.apply(x) + 1


@case(V, V.clone())
def foreach_in_place(x, y):
    torch._foreach_add_([x, y], 1.0)
    torch._foreach_mul_([x], [y])
    return x + 1


@case(V)
def foreach(x):
    return torch._foreach_add([x, x], [x, x]), torch._foreach_norm([x])


@case(V)
def random_methods_unused(x):
    torch.nn.functional.gumbel_softmax(x, dim=-1)
    torch.softmax(x, 0).multinomial(2)
    torch.nn.functional.rrelu(x, training=True)
    torch.sigmoid(x).bernoulli()
    torch.nn.functional.scaled_dot_product_attention(
        x[None, :, None], x[None, :, None], x[None, :, None], dropout_p=0.5
    )
    return x + torch.rand(1)


@case(torch.arange(6.0).reshape(2, 3))
def shape_changed_in_place(x):
    y = x + 1
    y.unsqueeze_(0)
    y.transpose_(1, 2)
    z = y.squeeze_(0).t_()
    return y, y.shape, z is y, x.shape


@case(V)
def norms_with_running_statistics(x):
    mean, var = torch.zeros(2), torch.ones(2)
    torch.nn.functional.batch_norm(x.reshape(2, 2), mean, var, training=True)
    return mean, var


@case(V, torch.eye(3))
def embedding_renormalises_its_table(x, w):
    torch.nn.functional.embedding(torch.tensor([0, 1]), w, max_norm=0.5)
    return w * 2


@case(V)
def chained_in_place_on_slices(x):
    x[1:].add_(x[:-1].clone()).mul_(2)
    x[:2] += 1
    x[0] -= x[1]
    x.view(2, 2)[1].zero_()
    return x.sum()


class Scaled(torch.nn.Parameter):
    """Has the base's `__torch_function__`, which is disabled."""

    scale = 3

    def scaled(self):
        return self * self.scale

    @property
    def twice(self):
        return self * 2


class Loud(torch.nn.Parameter):
    def __add__(self, other):
        return "added"


@case(make=lambda: (Scaled(torch.arange(3.0)), torch.ones(3)), graphs=1)
def parameter_subclass(w, x):
    return w.scaled() @ x, w.twice + w, type(w) is Scaled, isinstance(w, torch.nn.Parameter), torch.relu(w)


@case(make=lambda: (Loud(torch.arange(3.0)), torch.ones(3)))
def parameter_subclass_with_an_operator(w, x):
    return x * 2, w + x


@case(X, graphs=1)
def instances_of_named_kinds(x):
    y = x * 2
    kinds = torch.FloatTensor, torch.DoubleTensor, torch.BoolTensor, torch.sparse.FloatTensor, torch.cuda.FloatTensor
    return (
        x + 1, [isinstance(t, k) for t in (x, y, x > 1, x.double(), 3) for k in kinds], issubclass(type(x), torch.FloatTensor),
        isinstance(x, torch.autograd.Variable), isinstance(y, (int, torch.autograd.Variable)), isinstance(3, torch.autograd.Variable),
        isinstance(x, (torch.nn.Parameter, torch.nn.Buffer)),
    )  # fmt: skip


@case(make=lambda: (torch.BoolStorage.from_buffer(bytearray([0, 1]), "big"), torch.ones(3)))
def instances_of_storages(s, x):
    return x + 1, isinstance(s, torch.BoolStorage), isinstance(s, torch.FloatStorage), isinstance(s, torch.TypedStorage)


def _with_gradient():
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    return x, (x * 2).detach()


@case(make=_with_gradient, graphs=1)
def other_names_of_attributes(x, y):
    return x + 1, x._grad, y._grad, x.detach()._grad_fn


@case(make=_with_gradient, breaks=ANY)
def other_names_of_attributes_that_are_stored(x, y):
    x._grad = x.detach() + 5
    found = x.grad + 1
    x.grad = None
    return found, x._grad, y._base, x._post_accumulate_grad_hooks


@case(X, graphs=1)
def types_of_numbers_are_dtypes(x):
    return (
        x.to(bool), x.to(dtype=float), x.to("cpu", int), x.sum(dtype=float), torch.zeros(3, dtype=int) + x, x.new_zeros(3, dtype=complex),
        torch.full((3,), 2, dtype=float), torch.tensor([1, 0], dtype=bool), torch.empty_like(x, dtype=bool).zero_(),
    )  # fmt: skip


@pycompiler.allow_in_graph
def _converted(x, kind):
    return x + kind(3.7)


@case(X, breaks="unsupported-operation")
def types_of_numbers_in_a_function_of_the_programs(x):
    return _converted(x * 2, int)


@case(X, graphs=1)
def iterated_by_name(x):
    walk = x.__iter__()
    first = next(walk)
    return first + 1, [row * 2 for row in walk], [t.sum() for t in x.unbind().__iter__()], x.__len__()


@case(X, breaks=ANY)
def texts_by_name(x):
    y = x + 1
    return x.__repr__(), x.__str__(), y.__repr__(), y.__format__(""), x.sum().__format__(".2f")


@case(X, graphs=1)
def deprecated_question(x):
    return x + 1 if torch.jit.is_scripting() or not isinstance(torch._utils.is_compiling(), bool) else x - 1


@case(X, graphs=1)
def asserted_by_torch(x):
    torch._assert(condition=x.shape[0] == 2, message="other rows")
    torch._assert(x.sum() > 0, f"a sum of {len(x)} rows")
    torch._check_tensor_all_with(ValueError, x >= 0)
    torch._check_tensor_all_with(ValueError, cond=x < 9)
    return x + 1


@case(X)
def asserted_in_vain(x):
    found = []
    for wrong in (lambda: torch._assert(x.dim() == 3, f"{x.dim()} dimensions"), lambda: torch._assert(None, 3)):
        try:
            wrong()
        except AssertionError as e:
            found.append(e.args)
    return x + 1, found


@case(X, breaks=ANY)
def asserted_of_data_in_vain(x):
    torch._assert(x.sum() < 0, "a sum")
    return x + 1
