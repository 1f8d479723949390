"""Modules that cannot be of one type as a whole."""

import torch
from torch import nn


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
