"""nn.Module: containers, buffers, hooks, training flags, state set in forward, functional calls, losses, optimizers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from capture.harness import ANY, case
from torch import nn

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def _seeded(make):
    torch.manual_seed(0)
    return make()


def run_module(name, make, *args, **options):
    """Register a case that calls the module."""

    def call(module, *rest):
        return module(*rest)

    call.__name__ = call.__qualname__ = name
    case(_seeded(make), *(args or (X,)), **options)(call)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.fc2 = nn.Linear(8, 2)
        self.scale = 2.0

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x))) * self.scale


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.table = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(2)])
        self.named = nn.ParameterDict({"b": nn.Parameter(torch.zeros(4))})

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i < len(self.layers) - 1:
                x = self.table["relu"](x)
        for name, act in self.table.items():
            x = act(x) if name != "relu" else x
        for w in self.weights:
            x = x * w
        return (
            x + self.named["b"] + self.layers[-1].bias + self.weights[0],
            "tanh" in self.table,
            len(self.table),
            list(self.table),
        )


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.register_buffer("absent", None)

    def forward(self, x):
        self.count += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        if self.absent is not None:
            x = x * 2
        return x - self.mean + self.count


class BufferAssigned(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x):
        self.state = self.state + x.sum(0)
        return x + self.state


class StateInForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.last = None

    def forward(self, x):
        self.last = x * 2
        self.cache = {"x": self.last}
        return self.last + 1


class CountInForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.calls


class Training(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        x = self.bn(x)
        return self.drop(x) if self.training else x * 3


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x)) + self.tied(x)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.pre(x)

    def pre(self, x):
        return self.fc(x)


class Derived(Base):
    def __init__(self):
        super().__init__()
        self.extra = nn.Parameter(torch.ones(4))

    def forward(self, x, *, k=2):
        return super().forward(x) * self.extra * k

    def pre(self, x):
        return super().pre(x) + 1


class Introspective(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.seq = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        total = 0
        for name, p in self.named_parameters():
            total = total + p.sum() * len(name)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                total = total + m.in_features
        for name, child in self.named_children():
            total = total + len(name)
        n = sum(p.numel() for p in self.parameters())
        return (
            x * total,
            n,
            [type(m).__name__ for m in self.children()],
            next(self.parameters()).dtype,
            len(list(self.buffers())),
        )


class GetAttr(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(2):
            setattr(self, f"fc{i}", nn.Linear(4, 4))
            self.add_module(f"act{i}", nn.ReLU())

    def forward(self, x):
        for i in range(2):
            x = getattr(self, f"act{i}")(getattr(self, f"fc{i}")(x))
        return x, hasattr(self, "fc0"), hasattr(self, "fc9"), getattr(self, "fc9", None) is None


class Attention(nn.Module):
    def __init__(self, d=4, heads=2):
        super().__init__()
        self.heads, self.d = heads, d
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8, dtype=torch.bool)), persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(~self.mask[:t, :t], float("-inf")).softmax(dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (att @ v).transpose(1, 2).reshape(b, t, d) + y.transpose(1, 2).reshape(b, t, d)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)) for _ in range(2)])

    def forward(self, x):
        y = self.blocks(x)
        for block in self.blocks:
            y = y + block[0](x)
        return y, len(self.blocks), self.blocks[0][1](x), self.blocks[1:](x)


class CustomCall(nn.Module):
    def __call__(self, x):
        return super().__call__(x) + 1

    def forward(self, x):
        return x * 2


class NoForward(nn.Module):
    pass


class ForwardAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = F.gelu
        self.fns = [torch.sin, lambda v: v * 2]
        self.cfg = {"dim": 4, "act": nn.ReLU()}

    def forward(self, x):
        for f in self.fns:
            x = f(x)
        return self.act(self.cfg["act"](x)) * self.cfg["dim"]


class PropertyModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    @property
    def double(self):
        return self.w * 2

    @property
    def device(self):
        return next(self.parameters()).device

    def forward(self, x):
        return x.to(self.device) * self.double


class ReturnsDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x, labels=None, return_dict=True):
        logits = self.fc(x)
        loss = F.cross_entropy(logits, labels) if labels is not None else None
        return {"loss": loss, "logits": logits} if return_dict else (loss, logits)


class ParameterAssigned(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x):
        self.w = nn.Parameter(self.w * 2)
        return x * self.w


class SubmoduleAssigned(nn.Module):
    def forward(self, x):
        if not hasattr(self, "late"):
            self.late = nn.Identity()
        return self.late(x) + 1


class ZeroGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        self.eval()
        y = self.fc(x)
        self.train()
        return y


run_module("mlp", Mlp)
run_module("mlp_without_grad", lambda: Mlp().requires_grad_(False))
run_module("lists", Lists)
run_module("buffers", Buffers)
run_module("buffer_assigned", BufferAssigned, breaks=ANY)
run_module("state_in_forward", StateInForward)
run_module("count_in_forward", CountInForward)
run_module("training", Training)
run_module("evaluation", lambda: Training().eval())
run_module("shared", Shared)
run_module("derived", Derived)
run_module("introspective", Introspective)
run_module("getattr_modules", GetAttr)
run_module("attention", Attention, torch.linspace(-1, 1, 24).reshape(2, 3, 4))
run_module("nested", Nested)
run_module("custom_call", CustomCall)
run_module("no_forward", NoForward, breaks=ANY)
run_module("forward_attribute", ForwardAttribute)
run_module("property_module", PropertyModule)
run_module("returns_dict", ReturnsDict, X, torch.tensor([0, 1, 1]))
run_module("returns_tuple", ReturnsDict, X, None, False)
run_module("parameter_assigned", ParameterAssigned, breaks=ANY)
run_module("submodule_assigned", SubmoduleAssigned, breaks=ANY)
run_module("mode_changed_in_forward", ZeroGrad, breaks=ANY)
run_module("sequential", lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(-1)))
run_module("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)), breaks=ANY)
run_module(
    "old_weight_norm",
    lambda: nn.Sequential(nn.Linear(4, 2), nn.utils.parametrizations.orthogonal(nn.Linear(2, 2))),
    breaks=ANY,
)
run_module("lazy_linear", lambda: nn.LazyLinear(2), breaks=ANY, recompiles=99)
run_module("compiled_submodule", lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)).eval())

for _name, _layer, _shape in (
    ("conv", lambda: nn.Conv2d(2, 3, 3, padding=1), (1, 2, 5, 5)), ("conv1d", lambda: nn.Conv1d(2, 3, 2), (1, 2, 5)),
    ("conv_transpose", lambda: nn.ConvTranspose2d(2, 3, 2), (1, 2, 3, 3)), ("max_pool", lambda: nn.MaxPool2d(2), (1, 2, 4, 4)),
    ("avg_pool", lambda: nn.AvgPool2d(2), (1, 2, 4, 4)), ("adaptive_pool", lambda: nn.AdaptiveAvgPool2d(1), (1, 2, 4, 4)),
    ("batch_norm", lambda: nn.BatchNorm2d(2), (2, 2, 3, 3)), ("group_norm", lambda: nn.GroupNorm(1, 2), (1, 2, 3)),
    ("layer_norm", lambda: nn.LayerNorm(3), (2, 3)), ("rms_norm", lambda: nn.RMSNorm(3), (2, 3)), ("instance_norm", lambda: nn.InstanceNorm1d(2), (1, 2, 3)),
    ("gelu", nn.GELU, (2, 3)), ("silu", nn.SiLU, (2, 3)), ("mish", nn.Mish, (2, 3)), ("elu", nn.ELU, (2, 3)), ("prelu", nn.PReLU, (2, 3)),
    ("leaky", nn.LeakyReLU, (2, 3)), ("hardswish", nn.Hardswish, (2, 3)), ("log_softmax", lambda: nn.LogSoftmax(-1), (2, 3)), ("glu", nn.GLU, (2, 4)),
    ("upsample", lambda: nn.Upsample(scale_factor=2), (1, 1, 2, 2)), ("flatten", nn.Flatten, (2, 3, 4)), ("identity", nn.Identity, (2,)),
    ("bilinear_pad", lambda: nn.ZeroPad2d(1), (1, 1, 2, 2)), ("pixel_shuffle", lambda: nn.PixelShuffle(2), (1, 4, 2, 2)), ("softplus", nn.Softplus, (2, 3)),
    ("unfold", lambda: nn.Unfold(2), (1, 1, 3, 3)), ("dropout2d", lambda: nn.Dropout2d(0.5), (1, 2, 3, 3)), ("relu6", nn.ReLU6, (2, 3)), ("cosine", nn.Hardtanh, (2, 3)),
    ("lrn", lambda: nn.LocalResponseNorm(2), (1, 4, 3, 3)), ("threshold", lambda: nn.Threshold(0.1, 0.0), (2, 3)), ("channel_shuffle", lambda: nn.ChannelShuffle(2), (1, 4, 2, 2)),
):  # fmt: skip
    run_module(f"layer_{_name}", _layer, torch.linspace(-1, 1, math.prod(_shape)).reshape(_shape))

run_module("embedding", lambda: nn.Embedding(5, 3, padding_idx=0), torch.tensor([[0, 1], [2, 4]]))
run_module("embedding_bag", lambda: nn.EmbeddingBag(5, 3), torch.tensor([[0, 1], [2, 4]]))
run_module("lstm", lambda: nn.LSTM(4, 3, batch_first=True), torch.ones(1, 2, 4), breaks=ANY, recompiles=1)
run_module("gru_cell", lambda: nn.GRUCell(4, 3), torch.ones(1, 4), breaks=ANY)
run_module("multihead", lambda: nn.MultiheadAttention(4, 2, batch_first=True), *[torch.ones(1, 2, 4)] * 3, breaks=ANY)
run_module(
    "encoder_layer",
    lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
    torch.ones(1, 2, 4),
    breaks=ANY,
)
run_module("bilinear", lambda: nn.Bilinear(4, 4, 2), X, X)
run_module("cosine_similarity", lambda: nn.CosineSimilarity(), X, X)


# hooks --------------------------------------------------------------------------------------------------------
def _hooked(kind):
    torch.manual_seed(0)
    m = Mlp()
    m.fc1.seen = []
    if kind == "pre":
        m.fc1.register_forward_pre_hook(_pre_hook)
    elif kind == "forward":
        m.fc1.register_forward_hook(_forward_hook)
    elif kind == "kwargs":
        m.fc1.register_forward_hook(_kwargs_hook, with_kwargs=True)
    else:
        m.fc1.register_full_backward_hook(_backward_hook)
    return m


def _pre_hook(module, args):
    return (args[0] * 2,)


def _forward_hook(module, args, output):
    module.seen.append(len(args))
    return output + 1


def _kwargs_hook(module, args, kwargs, output):
    return output * 3


def _backward_hook(module, grad_in, grad_out):
    return None


run_module("hook_pre", lambda: _hooked("pre"))
run_module("hook_forward", lambda: _hooked("forward"))
run_module("hook_kwargs", lambda: _hooked("kwargs"))
run_module("hook_backward", lambda: _hooked("backward"), breaks=ANY, recompiles=9)


# functional and losses ----------------------------------------------------------------------------------------
@case(X)
def functional(x):
    w = torch.ones(2, 4)
    return (
        F.linear(x, w), F.gelu(x, approximate="tanh"), F.softmax(x, dim=-1), F.log_softmax(x, -1), F.dropout(x, 0.5, training=False), F.normalize(x, dim=1),
        F.layer_norm(x, (4,)), F.pad(x, (1, 0), value=2.0), F.interpolate(x[None], scale_factor=2), F.cosine_similarity(x, x + 1), F.one_hot(torch.tensor([0, 1]), 3),
        F.relu(x, inplace=False), F.silu(x), F.softplus(x), F.elu(x), F.leaky_relu(x), F.hardtanh(x), F.logsigmoid(x), F.glu(x), F.embedding(torch.tensor([0, 1]), x),
        F.avg_pool1d(x[None], 2), F.max_pool1d(x[None], 2), F.unfold(x[None, None], 2), F.conv1d(x[None], torch.ones(1, 3, 2)), F.threshold(x, 0.1, 0.0), F.rms_norm(x, (4,)),
        F.pairwise_distance(x, x), F.scaled_dot_product_attention(x[None], x[None], x[None]), F.grid_sample(x[None, None], torch.zeros(1, 2, 2, 2), align_corners=False),
        F.group_norm(x[None], 1), F.batch_norm(x, torch.zeros(4), torch.ones(4)), F.max_pool2d(x[None], 2, return_indices=True), F.gumbel_softmax(x, dim=-1) * 0,
    )  # fmt: skip


@case(X, torch.tensor([0, 1, 2]))
def losses(x, y):
    t = torch.sigmoid(x)
    return (
        F.cross_entropy(x, y), F.cross_entropy(x, y, reduction="none", label_smoothing=0.1), F.nll_loss(F.log_softmax(x, -1), y), F.mse_loss(x, x + 1), F.l1_loss(x, x * 2),
        F.smooth_l1_loss(x, x * 2), F.binary_cross_entropy(t, t.round()), F.binary_cross_entropy_with_logits(x, t), F.kl_div(F.log_softmax(x, -1), t, reduction="batchmean"),
        F.huber_loss(x, x * 3), F.hinge_embedding_loss(x, torch.ones(3, 4)), F.margin_ranking_loss(x, x * 2, torch.ones(3, 4)), F.triplet_margin_loss(x, x + 1, x - 1),
        F.cosine_embedding_loss(x, x + 1, torch.ones(3)), F.poisson_nll_loss(x, t), F.soft_margin_loss(x, torch.ones(3, 4)),
        F.multi_margin_loss(x, y), F.multilabel_soft_margin_loss(x, t.round()), nn.CrossEntropyLoss(ignore_index=1)(x, y), nn.MSELoss()(x, t),
    )  # fmt: skip


@case(X, torch.sigmoid(X))
def loss_that_checks_data(x, t):
    return F.gaussian_nll_loss(x, x, t)


@case(breaks=ANY)
def module_made_inside():
    m = nn.Linear(2, 2, bias=False)
    nn.init.ones_(m.weight)
    return m(torch.ones(1, 2))


@case(X)
def module_without_state_made_inside(x):
    return nn.ReLU()(x), nn.Identity()(x)


@case(_seeded(Mlp), X)
def functional_call(m, x):
    return F.linear(x, m.fc1.weight, m.fc1.bias), m.fc1.weight.shape, m.fc1.in_features, m.scale, m.training


@case(_seeded(Mlp), X, breaks=ANY)
def torch_func_functional_call(m, x):
    params = {k: v * 0 for k, v in m.named_parameters()}
    return torch.func.functional_call(m, params, (x,))


@case(_seeded(Mlp), X, breaks=ANY)
def training_step_sgd(m, x):
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    opt.zero_grad()
    loss = m(x).pow(2).mean()
    loss.backward()
    opt.step()
    return loss.detach()


@case(_seeded(Mlp), X, breaks=ANY)
def training_step_adam(m, x):
    opt = torch.optim.AdamW(m.parameters(), lr=0.1)
    for _ in range(2):
        opt.zero_grad(set_to_none=True)
        loss = F.mse_loss(m(x), torch.zeros(3, 2))
        loss.backward()
        opt.step()
    return loss.detach()


@case(_seeded(Mlp), X)
def manual_sgd(m, x):
    with torch.no_grad():
        for p in m.parameters():
            p -= 0.1 * torch.ones_like(p)
    return m(x)


@case(_seeded(Mlp), X)
def module_methods(m, x):
    return (
        m.fc1.forward(x),
        len(list(m.parameters())),
        m.extra_repr(),
        isinstance(m.fc1, nn.Linear),
        m.get_submodule("fc1") is m.fc1,
        m.fc1.weight.T @ m.fc1.weight,
    )


@case(_seeded(Mlp), X, breaks=ANY)
def state_dict_inside(m, x):
    return sorted(m.state_dict()), x + 1


@case(_seeded(Mlp), X, breaks=ANY)
def module_repr(m, x):
    return repr(m), x + 1


@case([nn.ReLU(), nn.Tanh()], X)
def list_of_modules(ms, x):
    for m in ms:
        x = m(x)
    return x


@case({"a": nn.ReLU()}, X)
def dict_of_modules(ms, x):
    return ms["a"](x), [type(m).__name__ for m in ms.values()]


@case(_seeded(Mlp), X, breaks=ANY)
def activation_checkpoint(m, x):
    return torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False)


@case(_seeded(Mlp), X, breaks=ANY)
def clip_grad(m, x):
    m(x).sum().backward()
    nn.utils.clip_grad_norm_(m.parameters(), 0.1)
    return [p.grad for p in m.parameters()]


@case(X, breaks=ANY)
def distributions(x):
    d = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
    return d.log_prob(x[0]), d.mean
