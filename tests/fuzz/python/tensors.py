"""Rows of programs that train: views and writes through them, gradients computed inside and accumulated, optimizers,
modes.

`W` is a parameter, `opt` its optimizer; a share of the programs has them (`generate.py: TRAINING`).
"""

from __future__ import annotations

SETUP = (
    "W = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))",
    "W = mod.weight",
    "W = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]), requires_grad=False)",
)
OPTIMIZERS = (
    "torch.optim.SGD([W], lr=0.5)", "torch.optim.SGD([W], lr=0.5, momentum=0.5)", "torch.optim.Adam([W], lr=0.1)",
    "torch.optim.SGD(mod.parameters(), lr=0.5)", "torch.optim.AdamW([{'params': [W], 'lr': 0.2}])", "torch.optim.RMSprop([W], lr=0.1)",
)  # fmt: skip
LITERALS = {"param": ("W", "mod.weight"), "view": ("W.view(-1)", "x[:]", "x.view(3)")}
EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "param": ("W", "mod.weight", "next(mod.parameters())", "opt.param_groups[0]['params'][0]", "(<param> if <bool> else <param>)"),
    "view": (
        "<tensor>.view(-1)", "<tensor>[:]", "<tensor>.view(1, 3)[0]", "<tensor>.unsqueeze(1).squeeze(1)", "<tensor>.expand(2, 3)[1]", "<tensor>.detach()", "<tensor>.unbind(0)[0].expand(3).clone()",
        "<tensor>.chunk(1)[0]", "<tensor>.split([1, 2])[1].repeat(2)[:3]", "<tensor>.as_strided((3,), (1,))", "<tensor>.data", "<tensor>.narrow(0, 0, 3)", "<tensor>.view_as(<tensor>)",
        "<tensor>.t()", "<param>.view(-1)[:3]", "<param>.detach().reshape(-1)[:3]", "<tensor>.diagonal() if <tensor>.dim() > 1 else <tensor>", "<view>[:]",
    ),
    "tensor": (
        "<view>", "<view> * 2", "<view>.sin()", "W * <tensor>", "W + <view>", "<param>.reshape(-1)[:3] * <tensor>", "torch.einsum('i,i->i', <tensor>, <tensor>)", "<tensor>.view(3, 1).mul(<tensor>).sum(1)",
        "torch.autograd.grad((<tensor> * W).sum(), W, allow_unused=True)[0]", "torch.autograd.grad(<scalar>, <param>, create_graph=<bool>)[0].reshape(-1)[:3]",
        "torch.func.grad(lambda u: <scalar|u:tensor>)(<tensor>)", "torch.func.vmap(lambda u: u * <int>)(<tensor>)", "torch.func.vjp(<tfn>, <tensor>)[1](<tensor>)[0]",
        "torch.utils.checkpoint.checkpoint(<tfn>, <tensor>, use_reentrant=False)", "torch.nn.functional.layer_norm(<tensor>, (3,), W if W.dim() == 1 else None)", "torch.nn.functional.dropout(<tensor>, 0.5, <bool>)",
        "torch.nn.functional.linear(<tensor>, mod.weight)", "<tensor>.index_select(0, torch.tensor([0, 2, 1]))", "<tensor>.gather(0, torch.tensor([1, 1, 0]))", "<tensor>.scatter_add(0, torch.tensor([1, 1, 0]), <tensor>)",
        "torch.addcmul(<tensor>, <tensor>, <tensor>)", "torch.lerp(<tensor>, <tensor>, 0.5)", "<tensor>.roll(<int>)", "torch.add(<tensor>, <tensor>, out=torch.empty(3))", "<tensor>.copy_(<tensor>)",
        "<param>.grad", "(<param>.grad if <param>.grad is not None else <tensor>).reshape(-1)[:3]", "<tensor>.requires_grad_()", "<tensor>.detach().requires_grad_() * 2",
        "torch.randn(3) * <tensor>", "torch.bernoulli(<tensor>.sigmoid())", "<tensor>.log_softmax(0)", "<tensor>.sort()[0]", "<tensor>.cumprod(0)", "torch.nn.functional.pad(<tensor>, (1, 0))[:3]", "<tensor>.repeat(2)[:3]",
        "torch.utils.swap_tensors.__name__ and <tensor>", "<tensor>.to(torch.bfloat16).float()", "<tensor>.type(torch.int64) + <tensor>", "<tensor>.tanh_()", "<tensor>.zero_() + <tensor>", "<tensor>.index_put((torch.tensor(0),), <scalar>)",
        "torch.stack([<tensor>, <view>]).max(0)[0]", "torch.block_diag(<tensor>, <tensor>)[0, :3]", "torch.outer(<tensor>, <tensor>)[<int> % 3]", "torch.nn.functional.normalize(<tensor>, dim=0)", "torch.complex(<tensor>, <tensor>).abs()",
    ),
    "scalar": (
        "(<tensor> * W).sum()", "torch.nn.functional.mse_loss(<tensor>, <tensor>)", "<view>.sum()", "<tensor>.var()", "<tensor>.logsumexp(0)", "torch.nn.utils.clip_grad_norm_([W], 1.0)", "(mod(<tensor>) ** 2).mean()",
        "<param>.sum()", "<tensor>.std(unbiased=False)", "torch.linalg.vector_norm(<tensor>)", "<tensor>.view(1, 3).matmul(<tensor>)[0]",
    ),
    "bool": ("<param>.grad is None", "<param>.requires_grad", "<view>._is_view()", "<tensor>._base is None", "<view>.is_contiguous()", "<param>.grad is <param>.grad", "torch.is_inference_mode_enabled()"),
    "int": ("<tensor>._version", "<view>.storage_offset()", "<view>.stride(0)", "len(opt.state)", "len(opt.param_groups)"),
    "float": ("opt.param_groups[0]['lr']",),
}  # fmt: skip
_SIMPLE = """
<=view> = <view>
<=view> = <view>
<view>.add_(<tensor>)
<view>.mul_(<int>)
<view>[0] = <scalar>
<view>.zero_()
<view>.copy_(<tensor>)
<view>.mul_(<scalar>)
<tensor>.detach().add_(1)
<view>.data.mul_(2)
<scalar>.backward()
<scalar>.backward(create_graph=True)
(<tensor> * W).sum().backward()
(<tensor> * W).sum().backward(retain_graph=True)
torch.autograd.backward([<scalar>, <scalar>])
opt.zero_grad()
opt.zero_grad(set_to_none=False)
opt.step()
opt.step()
opt.param_groups[0]['lr'] = <float>
W.grad = None
W.grad = torch.ones_like(W)
W.requires_grad_(<bool>)
mod.requires_grad_(<bool>)
<tensor>.requires_grad_()
<tensor>.retain_grad()
LOG.append(W.grad)
LOG.append(<param>.grad)
LOG.append(<tensor>.grad)
x.data = <tensor>
W.data = W.detach() * <int>
<tensor>.register_hook(lambda g: LOG.append('grad'))
<=tensor> = <tensor>.detach().requires_grad_()
<=tensor> = <param>.detach().clone().reshape(-1)[:3]
torch._foreach_add_([<tensor>, <tensor>], 1)
torch.manual_seed(<int>)
LOG.append(opt.state_dict()['param_groups'])
mod.mean.copy_(<tensor>)
"""
_COMPOUND = """
with torch.no_grad():
    W.add_(<scalar>)
    <block>

with torch.no_grad():
    <view>.mul_(2)
    <block>

with torch.inference_mode():
    <block>

with torch.no_grad():
    <=view> = <tensor>[:]
<block>
<view>.mul_(<scalar>)

<new:cut> = <tensor>.detach()
<new:part> = <new:cut>[:2]
<block>
<new:part>.mul_(<scalar>)
LOG.append(<new:cut>)

<new:cut> = <tensor>.data
<=view> = <new:cut>[:]
<block>
<new:cut>.add_(<tensor>)
LOG.append(<view>)

with torch.autocast('cpu', dtype=torch.bfloat16):
    <block>

with torch.autograd.set_grad_enabled(<bool>):
    <block>

<=tensor> = <tensor>
with torch.enable_grad():
    <block>
    <scalar>.backward()
LOG.append(W.grad)

for _ in range(2):
    opt.zero_grad()
    <new:loss> = <scalar> + (W * W).sum()
    <new:loss>.backward()
    opt.step()
LOG.append(<new:loss>.detach())

<new:before> = W.detach().clone()
<block>
LOG.append(<new:before>)

class <new:Fn>(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, k):
        ctx.save_for_backward(u)
        ctx.k = k
        return u * k
    @staticmethod
    def backward(ctx, g):
        LOG.append('backward')
        return g * ctx.k + ctx.saved_tensors[0], None
<=tensor> = <new:Fn>.apply(<tensor>, <int>)

@torch.no_grad()
def <new:f>(t):
    <block>
    return <tensor|t:tensor>
<=tensor> = <new:f>(<tensor>)
"""
CHANGES = (
    "x = W.detach()[:]", "x = x.detach()", "y = x.detach().view(3)", "x = torch.ones(6, requires_grad=True).split(3)[0]",
    "W.grad = None", "opt.zero_grad()", "W.requires_grad_(not W.requires_grad)", "x = W.detach()", "x = W", "y = x[:]", "y = x.view(3)", "opt = torch.optim.SGD([W], lr=0.25)", "x = x.detach().clone().requires_grad_()",
    "x = torch.ones(2, 3)[0]", "W.data.mul_(2)", "x = torch.ones(6)[::2]", "mod.requires_grad_(False)", "x = torch.zeros(3, requires_grad=True) * 1", "opt.param_groups[0]['lr'] = 0.125",
)  # fmt: skip


def statements() -> list[str]:
    """All rows of statements."""
    return [*filter(None, _SIMPLE.splitlines()), *filter(None, (row.strip("\n") for row in _COMPOUND.split("\n\n")))]
