"""Packed sequences while a model is traced: padded ones in their place.

The rows of a packed sequence are those of samples that are not over yet, so their number depends on
the data, and torch.export cannot trace it. Recurrent layers of padded sequences that leave a
sample's state as it is behind its end, and have zeros there, say the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import rnn

State = tuple[Tensor, ...]  # hidden [B, H], and of an LSTM its cell [B, H]


@dataclass(frozen=True)
class Padded:
    """In the place of a PackedSequence: sequences [B, T, ...] and their lengths [B]."""

    sequences: Tensor
    lengths: Tensor

    @property
    def inside(self) -> Tensor:
        """Truths [B, T]: not behind the end."""
        places = torch.arange(self.sequences.shape[1], device=self.lengths.device)
        return places < self.lengths.unsqueeze(1)

    def __getattr__(self, name: str) -> Any:
        if name in rnn.PackedSequence._fields:
            raise TypeError(
                f"the {name} of a packed sequence depends on the data; pad it "
                "(pad_packed_sequence) and use a mask"
            )
        raise AttributeError(name)

    def padded(self, value: float) -> Tensor:
        """The sequences with this value behind the end of each."""
        inside = self.inside.reshape(*self.inside.shape, *[1] * (self.sequences.dim() - 2))
        return torch.where(inside, self.sequences, value)


@contextlib.contextmanager
def padded_in_place_of_packed(module: nn.Module) -> Iterator[None]:
    """Let what the module packs stay padded. The functions may have been imported by name anywhere,
    so it is their code that is exchanged.
    """
    if not any(isinstance(part, nn.RNNBase) for part in module.modules()):
        yield
        return
    functions: dict[Any, Any] = {rnn.pack_padded_sequence: _pack, rnn.pad_packed_sequence: _pad}
    codes = {theirs: theirs.__code__ for theirs in functions}
    layers: tuple[Any, ...] = (nn.LSTM, nn.GRU, nn.RNN)
    forwards = [layer.forward for layer in layers]
    for theirs, ours in functions.items():
        theirs.__code__ = ours.__code__
    for layer, forward in zip(layers, forwards, strict=True):
        layer.forward = _forward(forward)
    try:
        yield
    finally:
        for theirs, code in codes.items():
            theirs.__code__ = code
        for layer, forward in zip(layers, forwards, strict=True):
            layer.forward = forward


def _pack(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> Any:
    """In the place of pack_padded_sequence, whose globals this code sees."""
    import torch

    from dpiframe_core.frontend.tracing.packed import Padded

    return Padded(input if batch_first else input.transpose(0, 1), torch.as_tensor(lengths))


def _pad(
    sequence: Any, batch_first: bool = False, padding_value: float = 0.0,
    total_length: int | None = None,
) -> Any:  # fmt: skip
    """In the place of pad_packed_sequence: as long as they were before, or `total_length`."""
    from torch.nn import functional

    found = sequence.padded(padding_value)
    if total_length is not None:
        missing = (0, 0) * (found.dim() - 2) + (0, total_length - found.shape[1])
        found = functional.pad(found, missing, value=padding_value)
    return found if batch_first else found.transpose(0, 1), sequence.lengths


def _forward(plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: nn.RNNBase, input: Any, hx: Any = None) -> Any:
        return _run(self, input, hx) if isinstance(input, Padded) else plain(self, input, hx)

    return forward


def _run(layer: nn.RNNBase, given: Padded, start: Any) -> tuple[Padded, Any]:
    """Layers of one or two directions; what they return of a packed sequence."""
    x, inside = given.sequences, given.inside.unsqueeze(2)
    is_lstm = layer.mode == "LSTM"
    width = layer.proj_size or layer.hidden_size
    if start is None:
        zeros = [x.new_zeros(x.shape[0], n) for n in (width, layer.hidden_size)[: 1 + is_lstm]]
    starts = None if start is None else (start if is_lstm else (start,))
    ends: list[State] = []
    directions = 2 if layer.bidirectional else 1
    for i in range(layer.num_layers):
        found = []
        for k in range(directions):
            at = i * directions + k
            state = tuple(zeros) if starts is None else tuple(each[at] for each in starts)
            made, state = _direction(layer, layer.all_weights[at], x, inside, state, k == 1)
            found.append(made)
            ends.append(state)
        x = torch.cat(found, 2)
    stacked = [torch.stack(parts) for parts in zip(*ends, strict=True)]
    return Padded(x, given.lengths), tuple(stacked) if is_lstm else stacked[0]


def _direction(
    layer: nn.RNNBase, weights: Sequence[Tensor], x: Tensor, inside: Tensor, state: State,
    backwards: bool,
) -> tuple[Tensor, State]:  # fmt: skip
    """Outputs [B, T, H] of one layer in one direction, zero behind the ends, and its last state."""
    w_input, w_hidden, *others = weights
    b_input, b_hidden = others[:2] if layer.bias else (None, None)
    of_inputs = functional.linear(x, w_input, b_input)
    outputs: list[Tensor] = []
    steps = range(x.shape[1])
    for t in reversed(steps) if backwards else steps:
        of_hidden = functional.linear(state[0], w_hidden, b_hidden)
        new = _cell(layer.mode, of_inputs[:, t], of_hidden, state)
        if layer.proj_size:
            new = functional.linear(new[0], weights[-1]), *new[1:]
        state = tuple(torch.where(inside[:, t], n, o) for n, o in zip(new, state, strict=True))
        outputs.append(torch.where(inside[:, t], new[0], 0.0))
    return torch.stack(outputs[::-1] if backwards else outputs, 1), state


def _cell(mode: str, of_input: Tensor, of_hidden: Tensor, state: State) -> State:
    """The next state; what the gates make of input and hidden state, [B, gates x H] each."""
    if mode == "LSTM":
        i, f, g, o = (of_input + of_hidden).chunk(4, 1)
        cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell
    if mode == "GRU":
        r_input, z_input, n_input = of_input.chunk(3, 1)
        r_hidden, z_hidden, n_hidden = of_hidden.chunk(3, 1)
        r, z = (r_input + r_hidden).sigmoid(), (z_input + z_hidden).sigmoid()
        n = (n_input + r * n_hidden).tanh()
        return (n + z * (state[0] - n),)
    both = of_input + of_hidden
    return (both.tanh() if mode == "RNN_TANH" else both.relu(),)
