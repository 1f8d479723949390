"""Operations of PyTorch, family by family: each adds its numbers to one score, which agrees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from imported_models import Imported
from torch import nn
from torch.nn import functional as F

from dpiframe_core.frontend.tracing.capture import traced
from dpiframe_core.lowering import lower
from dpiframe_core.program.interpreter import run_program

BATCH = 5
K = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
CUBE = torch.randn(3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
FIVE = torch.arange(5.0, dtype=torch.float64)
WIDE = torch.randn(5, 5100, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
PLACES = torch.tensor([2, 0, 1, 1])

# Each is a function of x [B, 3, 4] between -2 and 2, y [B, 4] positive, n [B, 4] ids below 5 and
# a table [5, 4].
FAMILIES = {
    "moving": [
        lambda x, y, n, t: x.transpose(1, 2).reshape(-1, 12) ** 2 * K.view(-1)[:12],
        lambda x, y, n, t: (x.permute(2, 0, 1).movedim(1, 0) * K[:, :3]),
        lambda x, y, n, t: x.view(-1, 2, 6)[:, 1, 1::2] * K[0, :3],
        lambda x, y, n, t: torch.einsum("bij->ijb", x).permute(2, 1, 0) * K[:, :3],
        lambda x, y, n, t: x.swapaxes(1, 2).unbind(1)[2] * K[0, :3],
        lambda x, y, n, t: x.unfold(2, 2, 1) * CUBE[:, :3],
        lambda x, y, n, t: x.diagonal(1, 1, 2) * K[0, :3],
        lambda x, y, n, t: y.expand(3, -1, -1).permute(1, 0, 2) * x,
        lambda x, y, n, t: y.repeat(2, 3)[: x.shape[0]] * K.view(-1)[:12],
        lambda x, y, n, t: y.repeat_interleave(3, dim=1) * K.view(-1)[:12],
        lambda x, y, n, t: torch.narrow(x, 2, 1, 2) * CUBE[:, 0],
        lambda x, y, n, t: x.tile(1, 2, 1)[:, 2:5] * CUBE[:, :, 0],
        lambda x, y, n, t: x[:, [2, 0]].squeeze() * K[:2],
        lambda x, y, n, t: x[..., None, :, 1].reshape(-1, 3) * K[1, :3],
    ],
    "joining": [
        lambda x, y, n, t: (torch.cat([x, y[:, None], torch.ones(x.size(0), 1, 4)], 1)
            * K[:, :1, None].expand(-1, 5, 4)[0]),
        lambda x, y, n, t: torch.stack([y, y.flip(1), y.roll(1, 1)], 2) * K[:, :3],
        lambda x, y, n, t: (F.pad(x, (1, 2, 1, 0), value=0.5)
            * torch.arange(28.0, dtype=torch.float64).view(4, 7)),
        lambda x, y, n, t: F.pad(x, (-1, 0)) * K[:3, :3],
        lambda x, y, n, t: torch.cat([x, x], 0)[x.shape[0] :] * K[:3],
        lambda x, y, n, t: x @ K.triu(1) + (x.transpose(1, 2) @ x).tril(-1)[:, :3],
        lambda x, y, n, t: torch.hstack((y, n)) * K[:2].view(-1),
        lambda x, y, n, t: torch.cat([n, n[:, :1]], 1).double() * FIVE,
    ],
    "picking": [
        lambda x, y, n, t: x[:, PLACES] * K,
        lambda x, y, n, t: x[:, PLACES, torch.tensor([0, 3, 3, 1])] * K[0],
        lambda x, y, n, t: x[:, :, [True, False, True, True]] * K[:3, :3],
        lambda x, y, n, t: torch.index_select(y, 1, PLACES) * K[0],
        lambda x, y, n, t: y.gather(1, n.clamp(max=3)) * K[1],
        lambda x, y, n, t: WIDE[n[:, 0]].view(-1, 3, 1700).sum(2) * K[0, :3],
        lambda x, y, n, t: t[(n * 75 + 31) % 1_000_003 % 5].sum(1),
        lambda x, y, n, t: y.gather(1, y.argsort(1, descending=True)) * K[1],
        lambda x, y, n, t: torch.take_along_dim(y, n % 4, -1) * K[0] + y.take_along_dim(n % 4, 1),
        lambda x, y, n, t: torch.take_along_dim(x, (n % 4)[:, None, :2], 2) * K[0, :2],
        lambda x, y, n, t: x[torch.arange(x.shape[0]), n[:, 0].clamp(max=2)] * K[2],
        lambda x, y, n, t: x.reshape(-1, 4)[n[:, 0] % 3 + torch.arange(len(x)) * 3] * K[2],
        lambda x, y, n, t: x.reshape(-1, 4)[(torch.arange(len(y)) * 3)[:, None] + n % 3 - 0] * K,
        lambda x, y, n, t: torch.index_select(
            x.view(-1, 4), 0, (torch.arange(x.size(0)) * 3 + n[:, 1] % 2 + 1).long()) * K[1],
        lambda x, y, n, t: x[torch.arange(x.shape[0])[:, None], n[:, :2] % 3 - 1] * CUBE[0].t(),
        lambda x, y, n, t: t[n] * K,
        lambda x, y, n, t: F.embedding(n.flip(1), t) * K,
        lambda x, y, n, t: F.embedding((y * 2).long().clamp(0, 4), t) * K,
        lambda x, y, n, t: F.embedding(n[:, :1].expand(-1, 3), t) * K[:3],
        lambda x, y, n, t: F.embedding(torch.cat([n, n[:, :2]], 1), t) * 0.3,
        lambda x, y, n, t: F.embedding(torch.arange(4).expand(y.shape[0], 4), t) * y[:, :, None],
        lambda x, y, n, t: F.embedding(n & 3, t) + F.embedding(n >> 1, t) * K,
        lambda x, y, n, t: y.topk(2)[0] * K[0, :2] + y.topk(2, largest=False)[1],
        lambda x, y, n, t: y.median(1)[0][:, None, None] * K[0] + x.median(1, True)[1],
        lambda x, y, n, t: x.kthvalue(2, -1)[0][..., None] * K[0] + y.kthvalue(3)[1][:, None, None],
        lambda x, y, n, t: x.sort(2)[0] * K[0] + x.max(2)[1][..., None] + x.argmin(1)[:, None],
        lambda x, y, n, t: torch.searchsorted(torch.tensor([0.5, 1.0]), y, right=True) * K[0],
        lambda x, y, n, t: torch.searchsorted(K.sort(1)[0], y.t().contiguous()).t() * K[0],
        lambda x, y, n, t: torch.searchsorted(y.cumsum(1), x.flatten(1)[:, :4]) * K[0],
        lambda x, y, n, t: torch.bucketize(y.log(), K[0].sort()[0], right=True) * K[1],
        lambda x, y, n, t: torch.searchsorted(K[0].sort()[0], x, side="right") * K[:3],
        lambda x, y, n, t: torch.isin(n, torch.tensor([1, 3])) * K[0],
    ],
    "writing": [
        lambda x, y, n, t: torch.zeros(x.size(0), 5).scatter_(1, n, 1.0) * FIVE,
        lambda x, y, n, t: y.new_zeros(x.size(0), 5).scatter(1, n, y) * FIVE,
        lambda x, y, n, t: y.new_zeros(x.size(0), 5).scatter_add(1, n, y) * FIVE,
        lambda x, y, n, t: y[:, :1] * (y.new_zeros(x.size(0), 5).scatter_add(
            1, n, torch.full_like(y, -math.inf)).exp() * FIVE),
        lambda x, y, n, t: F.one_hot(n, 5) * FIVE,
        lambda x, y, n, t: FIVE[:, None].gather(0, n[:, :1]) * y,
        lambda x, y, n, t: (x.masked_fill(x > 0, 0.5) * K[0]
            + x.masked_fill((n == 0)[:, None], -1.0)),
        lambda x, y, n, t: _assigned(x, y) * K[1],
        lambda x, y, n, t: _masked(x) * K[1],
        lambda x, y, n, t: _placed(y, n, 7.0) * K[1] + _placed(y, n[:, 0], y[:, 1]),
        lambda x, y, n, t: _placed(x, n[:, :2], y[:, None] * CUBE[:2, :, 0]) * K[1],
        lambda x, y, n, t: y.index_put(
            (torch.arange(len(y))[:, None], n % 4), y.flip(1), accumulate=True) * K[0],
        lambda x, y, n, t: _reduced(x, y, n, "sum", False) + _reduced(x, y, n, "amax", True),
        lambda x, y, n, t: _reduced(x, y, n, "mean", True) + _reduced(x, y, n, "mean", False),
        lambda x, y, n, t: _reduced(x, y, n, "prod", True) + _reduced(x, y, n, "amin", False),
        lambda x, y, n, t: x.index_fill(1, torch.tensor([0, 2]), 0.25) * K[2],
        lambda x, y, n, t: x.index_add(1, torch.tensor([2, 0]), x[:, :2]) * K[2],
        lambda x, y, n, t: x.new_zeros(x.size(0), 2, 4).scatter_add(
            1, torch.tensor([1, 0, 1]).view(1, 3, 1).expand(x.size(0), -1, 4), x.exp()) * K[2],
        lambda x, y, n, t: x.scatter_add(2, PLACES + torch.tensor([[1], [0], [1]]).expand(
            x.size(0), 3, 4), x) * K[0],
        lambda x, y, n, t: x.index_add(1, torch.tensor([2, 0, 2]), x.exp(), alpha=0.5) * K[2],
        lambda x, y, n, t: x.transpose(0, 1).index_put((torch.tensor([1, 0, 1]),), y.exp(),
            accumulate=True).transpose(0, 1) * K[3],
    ],
    "samples of a kind": [
        lambda x, y, n, t: _of_kinds(x, n, lambda rows: rows.sin() + 1) * K[0],
        lambda x, y, n, t: _packed(x, x[:, :, 0] > 0) * K[1],
        lambda x, y, n, t: _packed(n, n > 2, lambda ids: F.embedding(ids, t).sum(-1)) * K[2],
        lambda x, y, n, t: _picked(y, n[:, 0] > 2) * K[3],
    ],
    "reducing": [
        lambda x, y, n, t: x.sum(1) * y + x.mean((1, 2), keepdim=True)[:, 0],
        lambda x, y, n, t: x.logcumsumexp(2) * K[0] + x.logcumsumexp(1),
        lambda x, y, n, t: (x.amax(2) * K[0, :3] + x.amin((1, 2))[:, None]
            + x.max(1)[0].sum(1, True)),
        lambda x, y, n, t: x.prod(2) * K[1, :3] + (x > 0).any(1).double().sum(1, True),
        lambda x, y, n, t: ((n > 0).all(1, keepdim=True) + (n > 1).sum(1, True)
            + x.count_nonzero((1, 2))[:, None]),
        lambda x, y, n, t: x.std(2) * K[0, :3] + x.var((1, 2), correction=0, keepdim=True)[:, :, 0],
        lambda x, y, n, t: torch.var_mean(x, 1)[0] * K[0] + torch.std_mean(x, 2)[1].sum(1, True),
        lambda x, y, n, t: (x.norm(dim=1) * K[0] + x.norm(p=3, dim=2).sum(1, True)
            + x.norm(p=1, dim=(1, 2))[:, None]),
        lambda x, y, n, t: x.norm(p=math.inf, dim=2) * K[2, :3],
        lambda x, y, n, t: x.logsumexp(2) * K[2, :3] + x.log_softmax(1).sum(2),
        lambda x, y, n, t: x.softmax(1) * K[0] + F.softmin(x, 2) * K[1],
        lambda x, y, n, t: (x.flatten(1).softmax(1) * K.view(-1)[:12]
            + x[:, :, :1].softmax(2).sum(1)),
        lambda x, y, n, t: x.cumsum(2) * K[0] + x.cumsum(1) * K[1] + y.cumprod(1)[:, None],
        lambda x, y, n, t: x.cummax(2)[0] * K[0],
        lambda x, y, n, t: F.normalize(x, dim=2) * K[0] + F.normalize(x, p=1.0, dim=1),
        lambda x, y, n, t: F.cosine_similarity(x, y[:, None], dim=2) * K[0, :3],
        lambda x, y, n, t: (F.pairwise_distance(x[:, 0], x[:, 1])[:, None, None]
            + torch.cdist(x, x) * K[:3, :3]),
        lambda x, y, n, t: torch.cdist(y, t) * FIVE + torch.cdist(x, t, p=1.0).sum(1),
    ],
    "products": [
        lambda x, y, n, t: x @ K + (y @ K)[:, None] * K[0],
        lambda x, y, n, t: torch.bmm(x, x.transpose(1, 2)) * K[:3, :3],
        lambda x, y, n, t: torch.einsum("bij,jk,bk->bi", x, K, y) * K[0, :3],
        lambda x, y, n, t: torch.einsum("bij,bkj->bki", x, x) * K[:3, :3],
        lambda x, y, n, t: torch.einsum("bij,ijk->bk", x, CUBE) * K[0, :2],
        lambda x, y, n, t: torch.einsum("bij,bj->ib", x, y).t() * K[1, :3],
        lambda x, y, n, t: torch.einsum("ijk,bij->kb", CUBE, x).T,
        lambda x, y, n, t: torch.tensordot(x, CUBE, dims=([1, 2], [0, 1])) * K[0, :2],
        lambda x, y, n, t: torch.matmul(K, y.unsqueeze(-1)).squeeze(-1) * K[3],
        lambda x, y, n, t: (torch.matmul(x[:, None], K.view(2, 2, 4).transpose(1, 2)[None])
            * CUBE[:, 0]),
        lambda x, y, n, t: torch.baddbmm(K[:3, :3], x, x.mT, beta=0.5, alpha=2) * K[:3, :3],
        lambda x, y, n, t: torch.mv(y, K[0])[:, None] + torch.inner(y, K[:2]),
        lambda x, y, n, t: (y[:, :, None] * y[:, None] * K
            + torch.linalg.vecdot(y, y.exp())[:, None, None]),
        lambda x, y, n, t: F.bilinear(y, x[:, 0], CUBE[:2, :, :1].expand(2, 4, 4)) * K[0, :2],
        lambda x, y, n, t: (F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None],
            attn_mask=K[:3, :3] > 0) * K[0]),
        lambda x, y, n, t: torch.kron(torch.eye(2), K[:2, :2])[:, :3] @ x,
    ],
    "windows": [
        lambda x, y, n, t: (F.conv1d(x, CUBE[:2, :3, :].reshape(2, 3, 2), stride=2, padding=1) *
            K[0, :3]),
        lambda x, y, n, t: (F.conv2d(x[:, None], CUBE[:, None, :2], padding=(1, 0), dilation=(1,
            2)) * 0.3),
        lambda x, y, n, t: (F.conv1d(x.reshape(-1, 1, 4), K[:2, None, :3])[::1].reshape(-1, 12) *
            K.view(-1)[:12]),
        lambda x, y, n, t: (F.max_pool1d(x, 2, 1, padding=1) * FIVE
            + F.avg_pool1d(x, 3, 1).sum(2, True)),
        lambda x, y, n, t: (F.max_pool2d(x[:, None], (3, 2)) * K[0, :2]
            + F.adaptive_avg_pool1d(x, 2)[:, None]),
        lambda x, y, n, t: F.adaptive_avg_pool1d(x, 1) + F.adaptive_avg_pool2d(x[:, None], 1)[:, 0],
        lambda x, y, n, t: (F.adaptive_max_pool2d(x[:, None], (1, 2)) * K[0, :2]
            + F.adaptive_max_pool1d(x, 1)[:, None]),
        lambda x, y, n, t: (F.avg_pool1d(x, 3, 2, 1, count_include_pad=False) * K[0, :2]
            + F.avg_pool1d(x, 3, 2, 1, ceil_mode=True)[:, :, :1]),
        lambda x, y, n, t: (F.avg_pool2d(x[:, None], 2, 2, ceil_mode=True) * K[0, :2]
            + F.avg_pool2d(x[:, None], (2, 3), 1, divisor_override=5)),
        lambda x, y, n, t: F.max_pool1d(x, 3, 3, ceil_mode=True) * K[0, :2],
        lambda x, y, n, t: F.avg_pool1d(x[:, :, :2], 3, 3, ceil_mode=True) * K[0, :1],
        lambda x, y, n, t: F.max_pool2d(x[:, None], 2, 3, 1, 1, ceil_mode=True) * K[0, :2],
        lambda x, y, n, t: (F.adaptive_avg_pool2d(x[:, None], (2, 3))[:, 0] * K[0, :3]
            + F.adaptive_max_pool1d(x, 3)[:, :2]),
        lambda x, y, n, t: F.lp_pool1d(x.abs() + 0.1, 2, 2) * K[0, :2],
    ],
    "norms": [
        lambda x, y, n, t: F.layer_norm(x, [4], K[0], K[1]) * K[2] + F.layer_norm(x, [3, 4]) * K[3],
        lambda x, y, n, t: F.layer_norm(x.transpose(1, 2), [3], None, K[0, :3]) * K[:, :3],
        lambda x, y, n, t: F.group_norm(x.transpose(1, 2), 2, K[0], K[1]) * K[:, :3],
        lambda x, y, n, t: (F.batch_norm(x, K[0, :3], y.new_ones(3), K[1, :3], K[2, :3].abs()) *
            K[0]),
        lambda x, y, n, t: F.rms_norm(x, [4], K[0], 1e-5) * K[1],
        lambda x, y, n, t: F.instance_norm(x, eps=0.1) * K[2],
        lambda x, y, n, t: (F.instance_norm(x, K[0, :3], K[2, :3].abs(), K[1, :3], K[3, :3],
            use_input_stats=False) * K[2]),
    ],
    "elementwise": [
        lambda x, y, n, t: x.exp() + y[:, None].log() + y.log1p()[:, None] + x.expm1() + x.erf(),
        lambda x, y, n, t: x.sin() * x.cos() + x.tan() + y.sqrt()[:, None] + y.rsqrt()[:, None],
        lambda x, y, n, t: x.sinh() + x.cosh() + x.atan() + (x / 3).asin() + (x / 3).acos(),
        lambda x, y, n, t: x.asinh() + (y + 1).acosh()[:, None] + (x / 3).atanh(),
        lambda x, y, n, t: x.floor() + x.ceil() + x.round() + x.trunc() + x.frac() + x.sign(),
        lambda x, y, n, t: x.abs().pow(1.7) + x**3 + 2.0**x + y[:, None] ** x + x.square(),
        lambda x, y, n, t: (torch.where(x > y[:, None], x, 0.5) + x.clamp(-1, 0.5)
            + x.clamp(min=y[:, None])),
        lambda x, y, n, t: (x.maximum(y[:, None]) + torch.fmod(x, 0.7)
            + torch.remainder(x, 0.7) + x // 0.7),
        lambda x, y, n, t: (torch.logical_xor(x > 0, y[:, None] > 1) * K[0]
            + ((x > 0) & (x < 1) | ~(x > -1)) * K[1]),
        lambda x, y, n, t: (torch.nan_to_num((x > 0) / torch.zeros(1), 0.5, 2.0)
            + x.sigmoid().logit()),
        lambda x, y, n, t: torch.copysign(y[:, None], x) * K[0] + torch.ldexp(x, n[:, None] % 3),
        lambda x, y, n, t: (x.exp2() + y.log2()[:, None] + y.log10()[:, None]
            + torch.floor(torch.log2(2.0 ** n.double()))[:, None]),
        lambda x, y, n, t: (x.round(decimals=1) // 0.1 * K[0] + torch.fmod(x.round(decimals=1), 0.7)
            + torch.div(y.round(decimals=1), 0.1, rounding_mode="floor")[:, None]),
        lambda x, y, n, t: (n // 0.1 + torch.fmod(n, 0.75) + n.double() // 2.0)[:, None] * K[0, 0],
        lambda x, y, n, t: (x.round(decimals=2) + (n * 25.0).round(decimals=-1)[:, None]
            + ((x > 0) + (y[:, None] > 1)) * K[0]),
        lambda x, y, n, t: (torch.fmax(x.where(x < 1, math.nan), y[:, None]) * K[0]
            + torch.fmin(x, y.where(y > 0.5, math.nan)[:, None])),
        lambda x, y, n, t: torch.distributions.Normal(0.1, 0.7).cdf(x) * K[0],
        lambda x, y, n, t: (x + (x.round() - x).data) * K[0] + t.data[0] * y[:, None],
        lambda x, y, n, t: (torch.lerp(x, y[:, None], 0.3)
            + torch.addcmul(x, x, x, value=0.5) + torch.hypot(x, x)),
        lambda x, y, n, t: (torch.atan2(x, y[:, None]) + torch.xlogy(y, y)[:, None]
            + x.isfinite() * K[0]),
        lambda x, y, n, t: ((n * 2 + 1).double() * K[0] + (n / 2).int() * K[1] + n // 2 * K[2]
            + (n == 1) * K[3]),
        lambda x, y, n, t: (torch.div(x, 0.3, rounding_mode="trunc")
            + torch.rsub(x, 1, alpha=2) + x.to(torch.int8)),
        lambda x, y, n, t: x.bool() * K[0] + x.half() * 0 + y[:, None].reciprocal() + x.neg(),
    ],
    "complex": [
        lambda x, y, n, t: torch.polar(x.abs() + 0.1, x).angle() + torch.polar(y, y).real[:, None],
        lambda x, y, n, t: torch.fft.rfft(x, dim=1).abs() * K[:2],
        lambda x, y, n, t: (torch.fft.irfft(torch.fft.rfft(x, norm="ortho")
            * torch.complex(K[0, :3], K[1, :3]), n=4, norm="ortho") * K[1]),
        lambda x, y, n, t: torch.fft.fft2(x).real * K[0] + torch.fft.ifft(x, dim=2).imag * K[1],
        lambda x, y, n, t: torch.complex(x, x.exp()).sum(1).abs() + (1 - torch.polar(y, y)).imag,
        lambda x, y, n, t: ((torch.polar(y, y)[:, None] / torch.complex(x, x + 3)).real
            + (x / torch.polar(y, y)[:, None] + K[0]).imag),
        lambda x, y, n, t: (2.0 / torch.polar(y, y)).real + torch.polar(y, y).square().imag * K[0],
        lambda x, y, n, t: torch.exp(1j * x).mean(1).real * K[0] + (-torch.polar(y, y) ** 3).imag,
        lambda x, y, n, t: torch.view_as_real(torch.fft.rfft2(x).conj() * 2) * CUBE[:, :3],
    ],
    "sequences": [
        lambda x, y, n, t: ((x * (torch.arange(3) < n[:, :1]).unsqueeze(-1)).sum(1) / n[:,
            :1].clamp(min=1) * K[0]),
        lambda x, y, n, t: (x[:, :, 0].masked_fill(n[:, :3] == 0, -1e9)).softmax(1) * K[0, :3],
        lambda x, y, n, t: F.embedding_bag(n, t, mode="sum", per_sample_weights=y) * K[0],
        lambda x, y, n, t: F.embedding_bag(n, t, mode="max", padding_idx=0) * K[0],
        lambda x, y, n, t: F.embedding(torch.where(n > 2, n, 0), t) * K,
    ],
}  # fmt: skip


def _assigned(x, y):
    out = torch.zeros_like(x)
    out[:, 0] = y
    out[:, 1:, 1::2] = 3.0
    out[:, 2, :2] += x[:, 1, 2:]
    out[:, [1, 2], [0, 3]] = x[:, :2, 0]
    return out


def _placed(x, places, numbers):
    x = x.clone()
    samples = torch.arange(x.shape[0]).reshape(-1, *[1] * (places.dim() - 1))
    x[samples, places % x.shape[1]] = numbers
    return x


def _reduced(x, y, n, reduce, include_self):
    return x[:, 0].scatter_reduce(1, n % 4, y, reduce, include_self=include_self) * K[0]


def _masked(x):
    out = x.clone()
    out[x > 0.5] = -1.0
    out[:, torch.tensor([True, False, True])] = 0.25
    return out


def _of_kinds(x, n, tower):
    out = torch.zeros_like(x)
    out[n[:, 0] < 3] = 0.25
    for kind in range(3):
        is_kind = n[:, 0] == kind
        out[is_kind] += tower(x[is_kind]) * kind
    out[n[:, 1] == 1, 0] = 2.0
    return out


def _packed(x, mask, tower=torch.exp):
    out = torch.zeros(x.shape, dtype=K.dtype)
    out[mask] = tower(x[mask]).to(K.dtype)
    return out


def _picked(y, mask):
    samples = torch.where(mask)[0]
    out = torch.zeros_like(y).index_copy(0, samples, y[samples] * 2)
    others = torch.nonzero(~mask).squeeze(1)
    return out.index_add(0, others, y.index_select(0, others).exp())


class Sum(nn.Module):
    """The sum of what the functions give, each element with a weight of its own."""

    def __init__(self, functions) -> None:
        super().__init__()
        self.functions, self.table = functions, nn.Embedding(5, 4)

    def forward(self, x, y, n):
        total = self.table(n).sum((1, 2))
        for i, function in enumerate(self.functions):
            found = function(x.view(-1, 3, 4), y, n, self.table.weight)
            total = total + (found.double() * (1 + 0.1 * i)).flatten(1).sum(1)
        return total


def agrees(module, inputs) -> None:
    module, inputs = module.double(), [i.double() if i.is_floating_point() else i for i in inputs]
    found = Imported(traced(module, inputs), torch.float64)
    logits = found.logits(dict(zip("xyn", inputs, strict=True)))
    with torch.no_grad():
        expected = module(*inputs)
    assert torch.isfinite(expected).all()
    # Both in float64, with sums in another order.
    assert (logits - expected).abs().max() <= 1e-9 * expected.abs().max().clamp(min=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_agrees_with_pytorch(family):
    torch.manual_seed(len(family))
    x, y = torch.rand(BATCH, 12) * 4 - 2, torch.rand(BATCH, 4) * 2 + 0.1
    agrees(Sum(FAMILIES[family]), (x, y, torch.randint(0, 5, (BATCH, 4))))


ACTIVATIONS = [
    nn.CELU(0.7), nn.ELU(0.5), nn.GELU(), nn.GELU("tanh"), nn.Hardshrink(), nn.Hardsigmoid(),
    nn.Hardswish(), nn.Hardtanh(-0.5, 0.7), nn.LeakyReLU(0.2), nn.LogSigmoid(), nn.Mish(),
    nn.PReLU(), nn.PReLU(3), nn.ReLU(), nn.ReLU6(), nn.RReLU(), nn.SELU(), nn.SiLU(), nn.Sigmoid(),
    nn.Softplus(2.0), nn.Softplus(beta=30), nn.Softshrink(), nn.Softsign(), nn.Tanh(),
    nn.Tanhshrink(), nn.Threshold(0.3, 0.1), nn.GLU(-1), nn.Softmax(1), nn.Softmin(2),
    nn.LogSoftmax(-1), nn.Dropout(), nn.AlphaDropout(), nn.Identity(),
]  # fmt: skip


def test_activations():
    torch.manual_seed(1)
    weights = torch.randn(3, 4, dtype=torch.float64)
    parts = [lambda x, y, n, t, f=f: f(x) * weights[:, : f(x[:1]).shape[2]] for f in ACTIVATIONS]
    module = Sum(parts)
    module.activations = nn.ModuleList(ACTIVATIONS)
    inputs = torch.rand(BATCH, 12) * 4 - 2, torch.ones(BATCH, 4), torch.zeros(BATCH, 4).long()
    agrees(module.eval(), inputs)


@pytest.mark.parametrize("kind", [1.0, 2.0])
def test_rows_of_a_largest_norm(kind):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 4, max_norm=1.5, norm_type=kind)

        def forward(self, n):
            return (self.table(n[:, :2]) * self.table(n[:, 2:])).sum((1, 2))

    torch.manual_seed(3)
    model, ids = Twice().double(), torch.randint(0, 5, (BATCH, 4))
    found = Imported(traced(model, (ids,)), torch.float64)
    assert len(found.weights) == 1
    assert (found.logits({"n": ids}) - model(ids)).abs().max() <= 1e-9


class Large(nn.Module):
    """Weights of more than 2^24 elements: of a whole tensor, of columns of one."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(4200 - i, 4000) for i in range(2))
        for weight in self.weights:
            nn.init.normal_(weight[:, 0])

    def forward(self, d):
        x = d.repeat(1, 1400)
        return (x @ self.weights[0] + x[:, 1:] @ self.weights[1])[:, :1]


def test_a_weight_has_more_elements_than_a_sample():
    model, given = Large().eval(), torch.rand(5, 3)
    imported = Imported(traced(model, given))
    with torch.no_grad():
        expected = model(given).numpy()[:, 0]
    program = lower(imported.spec, imported.weights)
    found = run_program(program, torch.zeros(0, 5, dtype=torch.long), given.T)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)  # float32, 4,200 terms
