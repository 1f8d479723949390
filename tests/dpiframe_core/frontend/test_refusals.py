"""Models that have no scores of their own per sample, or that no form is known of: the error says
which operation, in which module, at which line, and what to do."""

from __future__ import annotations

import pytest
import torch
from imported_models import Imported
from torch import nn

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.tracing.capture import traced

IDS = torch.arange(10).reshape(5, 2) % 3
DENSE = torch.rand(5, 3)


class Refused(nn.Module):
    """A table, a linear layer, and what `body` does of ids [B, 2] and dense features [B, 3]."""

    def __init__(self, body) -> None:
        super().__init__()
        self.body, self.table = body, nn.Embedding(3, 4, max_norm=None)
        self.linear = nn.Linear(3, 1)
        self.bag = nn.EmbeddingBag(3, 4)

    def forward(self, x, d):
        return self.body(self, x, d)


def _control(m, x, d):
    return m.linear(d) if d.sum() > 0 else -m.linear(d)


CASES = {
    "a score that depends on neighbours": (
        lambda m, x, d: m.linear(d).softmax(0), ("_softmax", "samples of a batch")),
    "statistics of the batch": (
        lambda m, x, d: m.linear(d) - d.mean(), ("mean", "samples of a batch")),
    "in-batch negatives": (
        lambda m, x, d: (m.table(x[:, 0]) @ m.table(x[:, 1]).T).sum(1), ("mm", "samples")),
    "sorted samples": (lambda m, x, d: m.linear(d).sort(0)[0], ("sort", "samples of a batch")),
    "the first sample": (lambda m, x, d: m.linear(d) + d[0, 0], ("select", "place in the batch")),
    "the place in the batch": (
        lambda m, x, d: m.linear(d)[:, 0] + torch.arange(d.shape[0]),
        ("add", "place in the batch")),
    "rows of other samples": (
        lambda m, x, d: m.linear(d.reshape(-1, 1)[torch.arange(len(d)) * 2 + x[:, 0]] * d),
        ("index", "places that depend on the data")),
    "the size of the batch": (
        lambda m, x, d: m.linear(d) / d.shape[0], ("div", "size of the batch")),
    "samples moved": (lambda m, x, d: m.linear(d.flip(0)), ("flip", "place in the batch")),
    "random numbers": (
        lambda m, x, d: m.linear(d + torch.rand_like(d)), ("rand", "random numbers")),
    "hashes above 2^53": (
        lambda m, x, d: m.table(x * 0x9E3779B97F4A7C15 // 3 % 3).sum((1, 2)),
        ("embedding", "2^53")),
    "rows of a length that offsets decide": (
        lambda m, x, d: m.bag(x[:, 0], x[:, 1]).sum(1), ("_embedding_bag", "padded")),
    "offsets of lists that lie one behind the other": (
        lambda m, x, d: m.bag(x[x > 0], (x > 0).sum(1).cumsum(0) - 1).sum(1),
        ("cumsum", "padded")),
    "places that depend on the data": (
        lambda m, x, d: m.linear(d) + m.table(x[:, 0])[:, x[0]].sum(1, True),
        ("select", "batch")),
    "a determinant": (
        lambda m, x, d: torch.linalg.det(d.unsqueeze(2) * d.unsqueeze(1)), ("det", "rewrite")),
    "more numbers for a sample than can be told apart": (
        lambda m, x, d: (d.unsqueeze(2) * torch.zeros(1).expand(6_000_000)).sum((1, 2)),
        ("mul", "18,000,000 elements for each sample", "torch.matmul")),
    "complex misuse": (
        lambda m, x, d: torch.fft.fft(d).sin().real.sum(1), ("sin", "real numbers")),
    "a product of all complex numbers": (
        lambda m, x, d: torch.fft.fft(d).prod(1).real, ("prod", "real numbers")),
    "a mode": (lambda m, x, d: d.mode(1)[0], ("mode", "topk")),
    "a median of the batch": (lambda m, x, d: m.linear(d) - d.median(), ("median", "mixes")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_says_what_and_where(name):
    body, words = CASES[name]
    with pytest.raises(ModelImportError) as error:
        Imported(traced(Refused(body), (IDS, DENSE)))
    text = str(error.value)
    assert all(word in text for word in words), text
    assert "test_refusals.py" in text, text


def test_control_flow_that_depends_on_the_data():
    with pytest.raises(ModelImportError, match=r"torch\.where.*test_refusals\.py.*in _control"):
        traced(Refused(_control), (IDS, DENSE))


def test_a_number_of_the_data_is_no_fixed_batch():
    def body(m, x, d):
        return m.linear(d) + sum(d[:, int(i)] for i in x[0])[:, None]

    with pytest.raises(ModelImportError, match=r"depends on the data; use torch\.where"):
        traced(Refused(body), (IDS, DENSE))


def test_examples_that_the_model_itself_cannot_score():
    with pytest.raises(ModelImportError, match=r"example inputs: Runtime.*test_refusals\.py"):
        traced(Refused(lambda m, x, d: m.linear(d[:, :2])), (IDS, DENSE))


def test_a_size_that_depends_on_the_data():
    pairs = torch.combinations
    model = Refused(lambda m, x, d: m.linear(d) + d[:, pairs(torch.arange(3))].sum((1, 2))[:, None])
    with pytest.raises(ModelImportError, match=r"size of a tensor.*__init__"):
        traced(model, (IDS, DENSE))


def test_a_batch_that_is_fixed():
    with pytest.raises(ModelImportError, match=r"batch is fixed.*x\.shape\[0\].*test_refusals\.py"):
        traced(Refused(lambda m, x, d: m.linear(d.view(5, 3))), (IDS, DENSE))


def test_a_constant_that_changes():
    def body(m, x, d):
        m.steps += 1
        return m.linear(d) * m.steps

    model = Refused(body)
    model.steps = torch.zeros(1)
    with pytest.raises(ModelImportError, match=r"steps is mutated.*new tensors"):
        traced(model, (IDS, DENSE))


def test_a_batch_that_must_be_even():
    model = Refused(lambda m, x, d: m.linear(d.view(2, -1, 3)).view(-1, 1))
    with pytest.raises(ModelImportError, match=r"cannot trace.*batch"):
        traced(model, (IDS[:4], DENSE[:4]))


def test_batch_norm_without_statistics():
    model = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1, track_running_stats=False))
    with pytest.raises(ModelImportError, match=r"batch_norm.* in 1 .*call eval\(\)"):
        Imported(traced(model, DENSE))


def test_inputs_of_two_batches():
    with pytest.raises(ModelImportError, match="one batch"):
        traced(Refused(_control), (IDS, DENSE[:3]))
