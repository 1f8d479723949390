"""A case's model in PyTorch, in the forms in which its peers run: with a lookup for each table,
with one for all, with FBGEMM's; and its inputs in the layout that each likes best.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpiframe_core import CTRModel, ModelSpec
from pipeline.bench.cases.engine_case import Batch, EngineCase
from pipeline.bench.cases.random_data import TABLE_MARK, FlatTable, flat_of, flat_table
from pipeline.bench.cases.user_module import Arguments, UserModule
from pipeline.bench.engine.one_table import one_table
from pipeline.bench.engine.peers import (
    DTYPES,
    Dense,
    Lookup,
    OneTable,
    Peer,
    PerField,
    Rows,
    Tbe,
    Weights,
)
from pipeline.errors import DpiframeError

Change = Callable[[nn.Module], nn.Module]


MIXED = "its weights are float32, its products 16 bits (torch.autocast): its own code mixes types"


class Called(NamedTuple):
    """A module, what it is called with for each batch, and its answer as logits [B]. `note`: what
    is to be said of how it runs.
    """

    module: nn.Module
    inputs: Sequence[Arguments]
    logits: Callable[[Any], np.ndarray]
    note: str = ""

    def untied(self, i: int) -> np.ndarray:
        """Of the samples [B] of input i: whether the logit does not depend on which of equal
        numbers topk and sort take first, which PyTorch leaves open.
        """
        args, kwargs = self.inputs[i]
        found = []
        for reverse in (False, True):
            with torch.no_grad(), _TakesLast(reverse):
                found.append(self.logits(self.module(*args, **kwargs)))
        same: np.ndarray = (found[0] == found[1]) | np.isnan(found[0]) & np.isnan(found[1])
        return same


class Autocast(nn.Module):
    """A module in float32 under torch's mixed precision."""

    def __init__(self, module: nn.Module, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self._device, self._dtype = module, device, dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's answer."""
        with torch.autocast(self._device, self._dtype):
            return self.module(*args, **kwargs)


class _TakesLast(TorchDispatchMode):
    """Of equal numbers topk and sort take the last first, or, `reverse` False, the first."""

    def __init__(self, reverse: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reverse = reverse

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        aten = torch.ops.aten
        if func is aten.topk.default:
            return self._topk(*args, **kwargs)
        if func in (aten.sort.default, aten.sort.stable):
            at = [a for a in args[1:] if a is not None and not isinstance(a, bool)]
            down = [a for a in args[1:] if isinstance(a, bool)]
            return self._sorted(
                args[0],
                kwargs.get("dim", at[0] if at else -1),
                kwargs.get("descending", down[-1] if down else False),
            )
        return func(*args, **kwargs)

    def _topk(
        self, x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True
    ) -> tuple[Tensor, Tensor]:
        values, places = self._sorted(x, dim, largest)
        return values.narrow(dim, 0, k), places.narrow(dim, 0, k)

    def _sorted(self, x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
        values, places = (x.flip(dim) if self._reverse else x).sort(
            dim=dim, descending=descending, stable=True
        )
        return values, x.shape[dim] - 1 - places if self._reverse else places


class TorchModel:
    """One model in its forms. `has_tbe`: whether its lookup can be FBGEMM's."""

    has_tbe = False

    def __init__(self, case: EngineCase, batches: Sequence[Batch]) -> None:
        self.case, self.batches = case, batches
        self.dtype = DTYPES[case.computed]

    def per_field(self) -> Called:
        """A lookup for each table."""
        raise NotImplementedError

    def one_table(self) -> Called:
        """One lookup for all tables."""
        raise NotImplementedError

    def tbe(self, change: Change) -> Called:
        """FBGEMM's lookup, and what is behind it changed."""
        raise NotImplementedError

    def placed(self, module: nn.Module) -> nn.Module:
        """The module on the device in the precision's type."""
        return module.to(self.case.device, self.dtype).eval()


class UserModel(TorchModel):
    """A module of one's own, or a bundle's model: in one table by rewriting its lookups. A module
    that cannot be of 16 bits as a whole, such as one that names float32, runs under autocast.
    """

    def __init__(
        self, case: EngineCase, batches: Sequence[Batch], spec: ModelSpec, weights: Weights
    ) -> None:
        super().__init__(case, batches)
        self._spec, self._weights = spec, weights

    def per_field(self) -> Called:
        return self._called._replace(module=self._form(self._called.module))

    def one_table(self) -> Called:
        called = self._called
        return called._replace(module=self._form(one_table(called.module, *called.inputs[0])))

    def _form(self, module: nn.Module) -> nn.Module:
        mixed = self._called.note == MIXED
        return Autocast(module, self.case.device, self.dtype) if mixed else module

    @functools.cached_property
    def _called(self) -> Called:
        user = self.case.user_module()
        if user is None:
            module = self.placed(CTRModel.from_weights(self._spec, self._weights))
            return Called(module, [self._arrays(batch) for batch in self.batches], _numbers)
        called = self._in_type(user, self.dtype)
        if self.dtype.itemsize == 2 and not _runs(called):
            return self._in_type(user, torch.float32)._replace(note=MIXED)
        return called

    def _in_type(self, user: UserModule, dtype: torch.dtype) -> Called:
        device = self.case.device
        inputs = [user.arguments(b.ids, b.dense, device, dtype) for b in self.batches]
        module = user.scorer().to(device, dtype).eval()
        return Called(module, inputs, user.imported.logits)

    def _arrays(self, batch: Batch) -> Arguments:
        ids = torch.from_numpy(batch.ids).to(self.case.device)
        return (ids, torch.from_numpy(batch.dense).to(self.case.device, self.dtype)), {}


class SharedTables(TorchModel):
    """A model whose lookup is one of three over tables that all forms share."""

    has_tbe = True

    def behind(self) -> nn.Module:
        """What is behind the lookup."""
        raise NotImplementedError

    def tables(self) -> tuple[FlatTable, FlatTable | None]:
        """The embedding tables and the wide weights' on the device."""
        raise NotImplementedError

    def joined(self, lookup: nn.Module, behind: nn.Module) -> nn.Module:
        """The model of both."""
        raise NotImplementedError

    def arguments(self, kind: type[Lookup]) -> list[Arguments]:
        """What it is called with."""
        raise NotImplementedError

    def per_field(self) -> Called:
        embeddings, wide = self.tables()
        return self._of(PerField(embeddings.tables(), wide.tables() if wide else []))

    def one_table(self) -> Called:
        return self._of(OneTable(*self.tables()))

    def tbe(self, change: Change) -> Called:
        if importlib.util.find_spec("fbgemm_gpu") is None:
            raise DpiframeError("fbgemm_gpu is not installed")
        if self.case.precision == "bf16":
            raise DpiframeError("its lookup has no bf16")
        return self._of(Tbe(*self.tables()), change)

    def _of(self, lookup: Lookup, change: Change | None = None) -> Called:
        behind = self.placed(self.behind())
        module = self.joined(lookup.to(self.case.device), change(behind) if change else behind)
        return Called(module.eval(), self.arguments(type(lookup)), _numbers)


class BuiltIn(SharedTables):
    """A built-in model as its users would write it."""

    def __init__(
        self, case: EngineCase, batches: Sequence[Batch], spec: ModelSpec, weights: Weights
    ) -> None:
        super().__init__(case, batches)
        self._spec, self._weights = spec, weights

    def behind(self) -> nn.Module:
        return Dense(self._spec, self._weights)

    def tables(self) -> tuple[FlatTable, FlatTable | None]:
        case = self.case
        found, wide = (
            flat_table(self._spec, module, case.seed, self.dtype, case.device)
            for module in ("embedding", "wide")
        )
        assert found is not None
        return found, wide

    def joined(self, lookup: nn.Module, behind: nn.Module) -> nn.Module:
        return Peer(lookup, behind)

    def arguments(self, kind: type[Lookup]) -> list[Arguments]:
        found: list[Arguments] = []
        for batch in self.batches:
            ids = torch.from_numpy(batch.ids).to(self.case.device)
            dense = torch.from_numpy(batch.dense.T).to(self.case.device, self.dtype).contiguous()
            found.append(((dense, *kind.prepare(ids)), {}))
        return found


class OfZoo(SharedTables):
    """A model of the zoo, its tables replaced by the case's."""

    def __init__(self, case: EngineCase, batches: Sequence[Batch], user: UserModule) -> None:
        super().__init__(case, batches)
        self._user = user

    def behind(self) -> nn.Module:
        body = copy.deepcopy(self._user.module)
        body.embedded = nn.Identity()
        return body

    def tables(self) -> tuple[FlatTable, None]:
        case = self.case
        named = tuple(
            (f"embedding{TABLE_MARK}{field.name}", (field.rows, field.dim))
            for field in case.fields_of_tables()
        )
        return flat_of(named, case.seed, self.dtype, case.device), None

    def joined(self, lookup: nn.Module, behind: nn.Module) -> nn.Module:
        return Rows(lookup, self.case.dim, behind)

    def arguments(self, kind: type[Lookup]) -> list[Arguments]:
        found: list[Arguments] = []
        for batch in self.batches:
            (x, *rest), _ = self._user.arguments(
                batch.ids, batch.dense, self.case.device, self.dtype
            )
            found.append(((kind.prepare(x.T.contiguous()), *rest), {}))
        return found


def torch_model(
    case: EngineCase, batches: Sequence[Batch], spec: ModelSpec, weights: Weights
) -> TorchModel:
    """The model of a case."""
    if case.in_zoo:
        user = case.user_module()
        assert user is not None
        return OfZoo(case, batches, user)
    made = UserModel if case.bundle or case.module else BuiltIn
    return made(case, batches, spec, weights)


def _runs(called: Called) -> bool:
    """Whether the module takes its first inputs; where memory is short that is not its fault."""
    args, kwargs = called.inputs[0]
    try:
        with torch.no_grad():
            called.module(*args, **kwargs)
    except torch.OutOfMemoryError:
        return True
    except RuntimeError:
        return False
    return True


def _numbers(logits: Tensor) -> np.ndarray:
    found: np.ndarray = logits.float().cpu().numpy().reshape(-1)
    return found
