"""Modules that cannot be of one type as a whole."""

import torch
from torch import Tensor, nn


class NamesFloat32(nn.Module):
    """A mask is cast to float32, whatever the weights are."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Embedding(50, 8), nn.Embedding(9, 8), nn.Linear(17, 1)

    def example_inputs(self):
        return torch.tensor([1, 2]), torch.tensor([3, 0]), torch.randn(2, 1)

    def forward(self, one, two, dense):
        known = (two > 0).float().unsqueeze(1)
        return self.out(torch.cat([self.one(one), known * self.two(two), dense], 1))


class HeadInFloat64(NamesFloat32):
    """The last layer is float64."""

    def __init__(self):
        super().__init__()
        self.out.double()

    def forward(self, one, two, dense):
        return self.out(torch.cat([self.one(one), self.two(two), dense], 1).double()).float()


class OfHistory(nn.Module):
    """A number of a list of items."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items, self.out = nn.Embedding(50, 8), nn.Linear(8, 1)

    def example_inputs(self) -> tuple[Tensor]:
        return (torch.randint(0, 50, (64, 5)),)


class Masked(OfHistory):
    """A softmax over a history, with a mask that float16 does not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, items: Tensor) -> Tensor:
        e = self.items(items)
        scores = self.score(e).squeeze(-1).masked_fill(items == 0, -1e9)
        return self.out((scores.softmax(1).unsqueeze(-1) * e).sum(1))


class Recurrent(OfHistory):
    """A GRU over what was cast to float32: a ValueError where the module is of 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, items: Tensor) -> Tensor:
        return self.out(self.gru(self.items(items).float())[1][0])


class FloatIds(nn.Module):
    """One matrix of floats, with ids that 16 bits would round."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.user, self.out = nn.Embedding(5000, 8), nn.Linear(8 + 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.user(x[:, 0].long()), x[:, 1:]], 1))

    def example_inputs(self) -> tuple[Tensor]:
        return (torch.cat([torch.randint(0, 5000, (64, 1)).float(), torch.randn(64, 2)], 1),)
