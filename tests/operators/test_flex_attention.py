"""`flex_attention`: one graph with eager's values and gradients for any score or mask function; new lengths compile once more."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import pycompiler
from tests.harness.compare import Tolerance, assert_same

pytestmark = pytest.mark.filterwarnings("ignore:return_lse is deprecated", "ignore:flex_attention called without")
TABLE = torch.randn(4, 48, 48, generator=torch.Generator().manual_seed(1))
DOCUMENTS = torch.tensor([0, 0, 1, 1, 1, 2]).repeat_interleave(8)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
OFFSET = torch.tensor(3)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def same_document(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k)


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k).abs() < 5


def few_rows(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q < 10) & (q >= k)


def bias(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + TABLE[h, q, k]


def chained(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * 0.5 + TABLE[h][q][k] + TABLE[1, q, k] + TABLE[0, OFFSET, k]


def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + SLOPES[h] * (k - q)


def capped(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(q == k, score, torch.tanh(score / 2) * 2)


def tensors(
    dtype: torch.dtype = torch.float32, heads: int = 4, others: int = 4, length: int = 48, keys: int = 48
) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    shapes = ((2, heads, length, 16), (2, others, keys, 16), (2, others, keys, 16))
    return tuple(torch.randn(s, generator=g).to(dtype) for s in shapes)


def blocks(mask: Callable[..., Any], q: int = 48, k: int = 48, **options: Any) -> Any:
    return create_block_mask(mask, None, None, q, k, device="cpu", BLOCK_SIZE=16, **options)


def agree(
    fn: Callable[..., Any], *args: Any, backend: str = "native", graphs: int = 1, tolerance: Tolerance = None
) -> None:
    report = pycompiler.explain(fn)(*args)
    assert (report.graph_count, report.graph_break_count) == (graphs, 0), report
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    expected = fn(*args)
    for _ in range(2):
        assert_same(compiled(*args), expected, tolerance=tolerance)
    counters = compiled.counters()
    assert (counters["compiles"], counters["hits"]) == (1, 1)


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "native"))
@pytest.mark.parametrize("score", (None, bias, chained, alibi, capped))
def test_scores(score: Any, backend: str) -> None:
    agree(lambda q, k, v: flex_attention(q, k, v, score_mod=score), *tensors(), backend=backend)


@pytest.mark.parametrize("mask", (causal, same_document, window, few_rows))
def test_masks(mask: Any) -> None:
    given = blocks(mask)
    agree(lambda q, k, v, m: flex_attention(q, k, v, alibi, m), *tensors(), given)
    agree(lambda q, k, v: flex_attention(q, k, v, block_mask=given), *tensors())
    agree(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks(mask)), *tensors())


@pytest.mark.parametrize("dtype", (torch.float64, torch.bfloat16))
def test_dtypes(dtype: torch.dtype) -> None:
    tolerance = 1e-12 if dtype == torch.float64 else 0.02
    agree(lambda q, k, v, m: flex_attention(q, k, v, alibi, m), *tensors(dtype), blocks(causal), tolerance=tolerance)


@pytest.mark.parametrize("score", (None, bias))
def test_heads_that_share_keys(score: Any) -> None:
    given = tensors(heads=4, others=2)
    agree(lambda q, k, v: flex_attention(q, k, v, score_mod=score, enable_gqa=True, scale=0.5), *given)


def test_a_batch_that_shares_keys() -> None:
    q, k, v = tensors()
    given = create_block_mask(causal, 2, None, 48, 48, device="cpu", BLOCK_SIZE=16)
    agree(lambda q, k, v, m: flex_attention(q, k, v, block_mask=m), q, k[:1], v[:1], given)


def test_layouts_are_eagers() -> None:
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors())
    compiled = pycompiler.compile(flex_attention, fullgraph=True)
    assert compiled(q, k, v).stride() == flex_attention(q, k, v).stride()
    agree(lambda q, k, v: flex_attention(q, k, v).transpose(1, 2).reshape(2, 48, 64), q, k, v)


def test_sums_of_rows() -> None:
    given = blocks(few_rows)
    options = {"BLOCK_M": 16, "PRESCALE_QK": True}
    agree(
        lambda q, k, v, m: flex_attention(q, k, v, bias, m, return_lse=True, kernel_options=options), *tensors(), given
    )
    agree(lambda q, k, v: flex_attention(q, k, v, bias, return_aux=AuxRequest(lse=True)), *tensors())
    q, k, v = tensors()
    compiled = pycompiler.compile(flex_attention)
    for call in (compiled, flex_attention):
        with pytest.raises(NotImplementedError, match="max scores"):
            call(q, k, v, return_aux=AuxRequest(max_scores=True))


def test_what_eager_refuses_is_refused() -> None:
    q, k, v = tensors()

    def program(q: Any, k: Any, v: Any, **options: Any) -> Any:
        return flex_attention(q + 0, k, v, **options)

    compiled = pycompiler.compile(program)
    wrong = ((q, k[:, :2], v[:, :2]), {}), ((q.requires_grad_(), k, v), {}), ((q.detach(), k, v), {"block_mask": blocks(causal, 96)})  # fmt: skip
    for args, options in wrong:
        with pytest.raises(Exception) as expected:
            program(*args, **options)
        with pytest.raises(expected.type, match=str(expected.value)[:20]):
            compiled(*args, **options)


# gradients ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", ("aot_eager", "native"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_a_learned_table(dtype: torch.dtype, backend: str) -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(TABLE.to(dtype) / 3)
            self.heads = torch.nn.Parameter(SLOPES.to(dtype).clone())
            self.register_buffer("documents", DOCUMENTS)

        def forward(self, q: Any, k: Any, v: Any, m: Any) -> Any:
            def score(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
                same = self.documents[q] == self.documents[k]
                return torch.where(same, score * self.heads[h].exp() + self.table[h, q, k], score)

            out, sums = flex_attention(q, k, v, score, m, return_lse=True)
            return out.sin(), sums

    modules = [Attention(), Attention()]
    given = (*tensors(dtype), blocks(few_rows if dtype == torch.float64 else causal))
    compiled = pycompiler.compile(modules[0], backend=backend, fullgraph=True)
    for call in (compiled, modules[1]):
        out, sums = call(*given)
        (out.square().sum() + torch.where(sums.isinf(), 0, sums).sum()).backward()
    for ours, theirs in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def by_operator(q: Any, k: Any, v: Any, score: Any, mask: Any, *others: Any) -> Any:
    """torch's function refuses gradients of these on the CPU, but its operator accepts them."""
    return flex.flex_attention_hop(q, k, v, score, mask.as_tuple(), 0.25, {}, others)


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "native"))
@pytest.mark.parametrize("heads", (2, 4))
def test_gradients_of_queries_keys_and_values(heads: int, backend: str) -> None:
    def score(score: Any, b: Any, h: Any, q: Any, k: Any, slopes: Any, scale: Any) -> Any:
        return capped(score, b, h, q, k) + slopes[h] * (q - k) * scale

    given, results = blocks(few_rows), []
    compiled = pycompiler.compile(by_operator, backend=backend, fullgraph=True)
    for call in (compiled, by_operator):
        leaves = [t.requires_grad_() for t in (*tensors(torch.float64, others=heads), SLOPES.double())]
        out, sums, greatest = call(*leaves[:3], score, given, leaves[3], torch.tensor(0.5))
        loss = out.sin().sum() + torch.where(sums.isinf(), 0, sums).square().sum()
        results.append((out, sums, greatest, *torch.autograd.grad(loss, leaves)))
    torch.testing.assert_close(results[0], results[1])
    assert not results[0][2].requires_grad
    assert compiled.counters()["compiles"] == 1


def test_only_the_sums_go_backward() -> None:
    results = []
    for call in (pycompiler.compile(by_operator, fullgraph=True), by_operator):
        q, k, v = (t.requires_grad_() for t in tensors())
        results.append(torch.autograd.grad(call(q, k, v, capped, blocks(causal))[1].sum(), (q, k)))
    torch.testing.assert_close(results[0], results[1])


def test_second_derivatives_raise() -> None:
    q, k, v = (t.requires_grad_() for t in tensors())
    out = pycompiler.compile(by_operator)(q, k, v, capped, blocks(causal))[0]
    (grad,) = torch.autograd.grad(out.sin().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        grad.sum().backward()


def test_in_a_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    table = TABLE.clone().requires_grad_()

    def program(q: Any, k: Any, v: Any) -> Any:
        def block(q: Any) -> Any:
            return flex_attention(q.sin(), k, v, lambda s, b, h, i, j: s + table[h, i, j]).cos()

        return checkpoint(block, q, use_reentrant=False)

    def plainly(q: Any, k: Any, v: Any) -> Any:  # torch 2.15's checkpoint gives other gradients
        return ((q.sin() @ k.transpose(-1, -2) / 4 + table).softmax(-1) @ v).cos()

    results = []
    for call in (pycompiler.compile(program, fullgraph=True), plainly):
        results.append(torch.autograd.grad(call(*tensors()).sum(), table))
    torch.testing.assert_close(results[0], results[1])


# states ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", (torch.no_grad, torch.inference_mode, functools.partial(torch.autocast, "cpu")))
def test_states(state: Any) -> None:
    def program(q: Any, k: Any, v: Any, m: Any) -> Any:
        return flex_attention(q, k * 1, v, alibi, m)

    def inside(*args: Any) -> Any:
        with state():
            return program(*args)

    given = (*tensors(), blocks(same_document))
    if state is not torch.inference_mode:
        agree(inside, *given, tolerance=1e-2)
    with state():
        agree(program, *given, tolerance=1e-2)
        assert pycompiler.compile(program)(*given).is_inference() is torch.is_inference_mode_enabled()


def test_lengths() -> None:
    def program(q: Any, k: Any, v: Any) -> Any:
        m = create_block_mask(causal, None, None, q.shape[2], k.shape[2], device="cpu", BLOCK_SIZE=16)
        return flex_attention(q, k, v, alibi, m)

    compiled = pycompiler.compile(program, fullgraph=True)
    for length in (48, 33, 64, 17, 100, 80):
        given = tensors(length=length, keys=length)
        torch.testing.assert_close(compiled(*given), program(*given))
    assert compiled.counters()["compiles"] == 2


def test_lengths_with_masks_from_outside() -> None:
    table = torch.randn(4, 128, generator=torch.Generator().manual_seed(2)).requires_grad_()

    def program(q: Any, k: Any, v: Any, m: Any) -> Any:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, (i - j).abs()], m)

    compiled = pycompiler.compile(program, fullgraph=True)
    for length in (48, 33, 64, 17, 100):
        given = (*tensors(length=length, keys=length), blocks(causal, length, length))
        results = [torch.autograd.grad(call(*given).sin().sum(), table) for call in (compiled, program)]
        torch.testing.assert_close(results[0], results[1])
    assert compiled.counters()["compiles"] <= 3


# masks of blocks ------------------------------------------------------------------------------------------------------
def parts(mask: Any) -> Any:
    return mask.as_tuple()[:-1]


@pytest.mark.parametrize("options", ({}, {"separate_full_blocks": False}, {"compute_dq_write_order": True}))
def test_masks_that_are_results(options: Any) -> None:
    if missing := options.keys() - inspect.signature(create_block_mask).parameters.keys():
        pytest.skip(f"this torch has no {', '.join(missing)}")
    compiled = pycompiler.compile(functools.partial(blocks, **options), fullgraph=True)
    for mask in (causal, same_document, flex.and_masks(causal, window), flex.or_masks(window, few_rows)):
        ours, theirs = compiled(mask), blocks(mask, **options)
        torch.testing.assert_close(parts(ours), parts(theirs))
        assert type(ours) is flex.BlockMask
        assert str(ours) == str(theirs)


def test_torchs_functions_compiled_themselves() -> None:
    made = pycompiler.compile(create_block_mask, fullgraph=True)(same_document, 1, 1, 48, 48, "cpu")
    torch.testing.assert_close(parts(made), parts(create_block_mask(same_document, 1, 1, 48, 48, "cpu")))
    compiled = pycompiler.compile(flex_attention, fullgraph=True)
    torch.testing.assert_close(compiled(*tensors(), bias, made), flex_attention(*tensors(), bias, made))
    assert torch.equal(
        pycompiler.compile(flex.create_mask)(same_document, 1, 1, 48, 48, "cpu"),
        flex.create_mask(same_document, 1, 1, 48, 48, "cpu"),
    )
    agree(lambda: flex.create_mask(lambda s, b, h, q, k: torch.where(q > k, s, -torch.inf), 1, 2, 8, 8, "cpu"))


# graph breaks ---------------------------------------------------------------------------------------------------------
class Counting:
    calls = 0


def acting(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    Counting.calls += 1
    return score


def branching(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * 2 if float(TABLE[0, 0, 0].item()) > 5 else score


def calling(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    pycompiler.graph_break()
    return score * 2


@pytest.mark.parametrize("score", (acting, branching, calling))
def test_the_call_breaks_the_graph_and_runs_as_in_eager(score: Any) -> None:
    def program(q: Any, k: Any, v: Any) -> Any:
        with torch.inference_mode():
            return flex_attention(q.sin(), k, v, score).cos()

    def outcome(call: Any, *args: Any) -> Any:
        torch.compiler.reset()
        try:
            return call(*tensors(), *args)
        except Exception as e:
            return type(e)

    compiled, itself = pycompiler.compile(program), pycompiler.compile(flex_attention)
    pairs = (outcome(program), outcome(compiled)), (outcome(flex_attention, score), outcome(itself, score))
    for expected, found in pairs:
        assert_same(found, expected)
    assert compiled.counters()["compiles"] >= 1


@pytest.mark.captures_nothing("the call raises in eager mode as well")
def test_random_numbers_raise_as_in_eager() -> None:
    def score(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + torch.rand(())

    for call in (flex_attention, pycompiler.compile(flex_attention)):
        with pytest.raises(RuntimeError, match="random"), warnings.catch_warnings():
            call(*tensors(), score)
