"""In-place writes: views, overlaps, arguments that share memory, and reads before and after a write."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.reports.core import report, scenario


@report(197829, "Rows are shifted in place: x[1:] = x[:-1].clone()", exact=True)
def shifted_rows() -> Any:
    def fn(x: Any) -> Any:
        x[1:] = x[:-1].clone()
        return x

    return fn, lambda: (torch.rand(3, 16, 16),)


@report(198270, "index_put_ into x, then x.add_(x.flip(0))", exact=True)
def put_then_flip() -> Any:
    def fn(x: Any) -> Any:
        x.index_put_((torch.arange(x.size(0)),), x * 2.0)
        x.add_(x.flip(0))
        return x

    return fn, lambda: (torch.rand(4, 8),)


@report(198101, "A product of the input's int32 view is taken before the input is written", exact=True)
def view_before_write() -> Any:
    def fn(x: Any) -> Any:
        y = x.view(torch.int32) * 2
        y.sub_(-4)
        x[:, 2:5] = 2
        return y.view(torch.int64)

    return fn, lambda: (torch.arange(-12, 12).reshape(4, 6),)


@report(198095, "A view of a second argument that shares memory with the written first", exact=True)
def view_of_alias() -> Any:
    def fn(whole: Any, part: Any) -> Any:
        whole.add_(100)
        return part[0], part.view(-1)

    def args() -> Any:
        whole = torch.arange(24.0).reshape(4, 6)
        return whole, whole[1:]

    return fn, args


@report(139789, "Arguments that do not overlap, then arguments that do", exact=True)
def overlap_later() -> Any:
    def fn(x: Any, y: Any) -> Any:
        x.mul_(2)
        return x + y

    def overlapping() -> Any:
        base = torch.ones(8)
        return base[:4], base[2:6]

    return fn, lambda: (torch.ones(4), torch.ones(4)), overlapping


@scenario(93363, "An argument that is a view with a history is written")
def view_with_history(compile: Any) -> Any:
    def fn(x: Any) -> None:
        x.add_(1.0)

    leaf = torch.ones(4, requires_grad=True)
    base = leaf * 1.0
    compile(fn)(base[0::2])
    (base * torch.arange(4.0)).sum().backward()
    return base, leaf.grad


@report(177631, "pad by nothing is a copy: a later write to its input does not reach it", exact=True)
def pad_by_nothing() -> Any:
    def fn(x: Any) -> Any:
        copy = F.pad(x, (0, 0))
        x[0] = 1
        return torch.sort(copy)[0]

    return fn, lambda: (torch.zeros(2, 2),)


@report(113641, "Two strided parts are clamped in place, each by its own bounds", exact=True)
def clamped_parts() -> Any:
    def fn(x: Any, top: int, left: int, height: int, width: int) -> Any:
        boxes = x - torch.tensor([left, top, left, top], dtype=x.dtype)
        boxes[..., 0::2].clamp_(min=0, max=width)
        boxes[..., 1::2].clamp_(min=0, max=height)
        return boxes

    return fn, lambda: (torch.tensor([[0.0, 1.0, 10.0, 14.0]]), 7, 3, 3, 5)


@report(136662, "func.grad of a sum into which one column is added twice")
def added_twice() -> Any:
    def inner(x: Any) -> Any:
        y = torch.zeros_like(x)
        y[:, 0] += x[:, 2].abs()
        y[:, 0] += x[:, 2].abs()
        return y.sum()

    return lambda x: torch.func.grad(inner)(x), lambda: (torch.randn(2, 3),)


@report(138908, "Rows of an argument are doubled by y[i] += y[i]", exact=True)
def doubled_rows() -> Any:
    def fn(i: Any, y: Any) -> None:
        i = i + 10
        y[i] += y[i]

    return fn, lambda: (torch.full((1, 2), -10), torch.randn(2, 32))


@report(96728, "A comparison whose result nobody uses", exact=True)
def unused_comparison() -> Any:
    def fn(a: Any, b: Any) -> Any:
        a = a.max(0).values
        c = torch.cat((a, b)).round()
        b >= a[0]
        return c

    return fn, lambda: (torch.tensor([[4.0]]), torch.tensor([5.0]))


@report(94777, "log(x), then x.log_()", exact=True)
def log_then_log() -> Any:
    def fn(x: Any) -> Any:
        y = torch.log(x)
        x.log_()
        return y

    return fn, lambda: (torch.tensor(3.0),)


@report(93283, "stack of one tensor is a copy: silu in place does not reach it", exact=True)
def stack_of_one() -> Any:
    def fn(x: Any) -> Any:
        stacked = torch.stack([x])
        F.silu(x, inplace=True)
        return stacked

    return fn, lambda: (torch.tensor([1.0, 1.0]),)


@report(118961, "fliplr, resolve_conj and diagflat are copies: relu6 in place does not reach them", exact=True)
def copies_before_relu6() -> Any:
    def fn(x: Any) -> Any:
        made = torch.diagflat(torch.resolve_conj(torch.fliplr(x)), offset=3)
        F.relu6(x, inplace=True)
        return made

    return fn, lambda: (torch.randint(-9, 9, (3, 4), dtype=torch.int32),)


@report(93824, "A view of squeezed minima, whose base is written by reciprocal_")
def squeezed_minima() -> Any:
    def fn(x: Any) -> Any:
        least = x.min(0).values.squeeze(1)
        view = least.squeeze(0)
        least.reciprocal_()
        return view

    return fn, lambda: (torch.rand(1, 1, 1, 1, 12),)


@report(97083, "A squeezed element is read after two writes with a test between them", exact=True)
def squeezed_element() -> Any:
    def fn(x: Any) -> Any:
        a = x + 1
        a = a[0:1]
        b = a.squeeze()
        a[0] = 0
        if a[0] < 1e5:
            pass
        a[0] = 2
        return b

    return fn, lambda: (torch.tensor([1]),)


@report(100224, "out[mask] *= 0.5 into an argument that is returned", exact=True)
def masked_product() -> Any:
    def fn(x: Any) -> Any:
        mask = x > 0
        x[mask] *= 0.5
        return x

    return fn, lambda: (torch.randn(1, 3, 2, 2),)


@report(183575, "Two momenta by lerp_, whose parameters read them later", cuda=True)
def momenta() -> Any:
    def fn(p1: Any, p2: Any, x: Any, m1: Any, m2: Any) -> Any:
        y = torch.relu(x @ p1) @ p2
        g1, g2 = x.t() @ y, torch.relu(x @ p1).t() @ y
        m1.lerp_(g1, 0.05)
        m2.lerp_(g2, 0.05)
        p1.add_(m1, alpha=-0.01)
        p2.add_(m2, alpha=-0.01)
        return y.sum()

    return fn, lambda: tuple(torch.randn(8, 8) for _ in range(5))


@report(185382, "Adam in a loop whose step is read by item()")
def adam_in_a_loop() -> Any:
    def step(p: Any, g: Any, m: Any, v: Any, t: Any) -> None:
        t.add_(1)
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        n = t.item()
        denominator = (v.sqrt() / (1 - 0.999**n) ** 0.5).add_(1e-8)
        p.addcdiv_(m, denominator, value=-0.001 / (1 - 0.9**n))

    def fn(p: Any, g: Any) -> Any:
        p = p.clone()
        m, v, t = torch.zeros_like(p), torch.zeros_like(p), torch.zeros(())
        for _ in range(5):
            step(p, g, m, v, t)
        return p

    return fn, lambda: (torch.randn(7), torch.randn(7))


@report(136064, "A view of the same dtype is written by copy_", exact=True)
def view_of_own_dtype() -> Any:
    def fn(x: Any, y: Any) -> None:
        x.view(torch.float32).copy_(y)

    return fn, lambda: (torch.zeros(4, 4), torch.ones(4, 4))


@scenario(128035, "An argument with a history is written: its gradient passes the write")
def gradient_through_write(compile: Any) -> Any:
    def fn(x: Any) -> Any:
        x.mul_(3)
        return x.sin()

    compiled, grads = compile(fn), []
    for _ in range(2):
        leaf = torch.linspace(-1, 1, 5, requires_grad=True)
        x = leaf * 2
        (compiled(x).sum() + x.square().sum()).backward()
        grads.append(leaf.grad)
    return grads


@report(125999, "copy_ into an argument that is one row of a larger tensor", cuda=True)
def copy_into_row() -> Any:
    def fn(a: Any, b: Any) -> None:
        high, low = torch.max(a, b), torch.min(a, b)
        a.copy_(high + torch.log(1 + torch.exp(low - high)))

    return fn, lambda: (torch.randn(1, 3, 2, 26)[..., 1, :], torch.randn(1, 3, 26))


@report(93562, "select of an argument that begins inside of its storage", exact=True)
def select_of_offset() -> Any:
    return lambda x: (torch.select(x, 1, 2), x[1:, 1]), lambda: (torch.rand(3, 4, 5, 6)[2],)


@report(175325, "as_strided of an argument that begins inside of its storage", described=True, exact=True)
def strided_with_offset() -> Any:
    return lambda x: torch.as_strided(x, (2, 3), (3, 1), 1) + torch.as_strided(x, (2, 3), (1, 2)), lambda: (
        torch.arange(20.0)[4:],
    )


@report(103563, "A nested list is filled by what was just put into it", exact=True)
def nested_list() -> Any:
    def fn(x: Any) -> Any:
        data: Any = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
        for i in range(3):
            data[0][i] = x if i == 0 else data[0][i - 1] + 1
        return data[0][-1]

    return fn, lambda: (torch.rand(2),)


@report(180642, "+= in the forward of an autograd Function", training=True)
def write_in_forward() -> Any:
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            total = x.clone()
            total += y
            return total

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad, grad * 2

    return lambda x, y: Sum.apply(x, y) * 3, lambda: (
        torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True))  # fmt: skip


@report(175496, "softmax of a tensor that div_ wrote, returned beside its detached self")
def divided_and_detached() -> Any:
    def fn(x: Any, y: Any) -> Any:
        x.div_(y)
        return F.softmax(x, dim=-1), x.detach()

    return fn, lambda: (torch.randn(2, 4, 4, 4, dtype=torch.float64), torch.randn(4, 1, 1, dtype=torch.float64))
