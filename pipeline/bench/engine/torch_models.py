"""A case's model in PyTorch, in the forms in which its peers run: with a lookup for each table,
with one for all, with FBGEMM's; and its inputs in the layout that each likes best.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpiframe_core import CTRModel, ModelSpec
from dpiframe_core.frontend.tracing.source import first_of_equal
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
ORDERS = 8  # twice as many: of several equal numbers each should come first once
NEAR, FARTHEST = 1e-5, 1e300  # numbers that rounding may exchange; infinite ones are equal as well
# How a module runs that cannot be of one type as a whole: in 16 bits by the first, where it can.
AUTOCAST = "its types are as written, float32 products in 16 bits by torch.autocast"
MIXED = "its types are as written"


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
        numbers, or of some that rounding tells apart, topk and sort take first.
        """
        args, kwargs = self.inputs[i]
        found = []
        for seed, sign in itertools.product(range(ORDERS), (1, -1)):
            with torch.no_grad(), _Moved(seed, sign):
                found.append(self.logits(self.module(*args, **kwargs)))
        logits = np.stack(found)
        same: np.ndarray = ((logits == logits[0]) | np.isnan(logits)).all(0)
        return same

    def first(self, i: int) -> np.ndarray:
        """Logits [B] of input i where topk and sort take the first of equal numbers first."""
        args, kwargs = self.inputs[i]
        with torch.no_grad(), _First():
            return self.logits(self.module(*args, **kwargs))


class Autocast(nn.Module):
    """A module under torch's mixed precision."""

    def __init__(self, module: nn.Module, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self._device, self._dtype = module, device, dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's answer."""
        with torch.autocast(self._device, self._dtype):
            return self.module(*args, **kwargs)


class _First(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return first_of_equal(func, args, kwargs or {})


class _Moved(TorchDispatchMode):
    """topk and sort compare numbers that are moved by about as much as rounding may, up or down as
    the seed and its sign say: of two that are as good as equal each comes first once.
    """

    def __init__(self, seed: int, sign: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._sign = seed, sign

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        aten = torch.ops.aten
        if func not in (aten.topk.default, aten.sort.default, aten.sort.stable):
            return func(*args, **kwargs)
        x = args[0]
        random = torch.Generator(x.device).manual_seed(self._seed)
        by = self._sign * torch.rand(
            x.shape, generator=random, dtype=torch.float64, device=x.device
        )
        numbers = x.double().clamp(-FARTHEST, FARTHEST)
        if x.is_floating_point():
            numbers = numbers * (1 + NEAR * by) + NEAR / 10 * by
        else:
            numbers = numbers + by / 2  # of whole numbers none but equal ones change places
        _, places = func(numbers, *args[1:], **kwargs)
        dims = [a for a in args[1:] if a is not None and not isinstance(a, bool)]
        dims = dims[1:] if func is aten.topk.default else dims
        return x.gather(kwargs.get("dim", dims[0] if dims else -1), places), places


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
    that cannot be of one type as a whole, such as one that casts, keeps its own, and in 16 bits
    runs under autocast, unless it has numbers that these do not hold, such as masks of -1e9.
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
        is_cast = self._called.note.startswith(AUTOCAST)
        return Autocast(module, self.case.device, self.dtype) if is_cast else module

    @functools.cached_property
    def _called(self) -> Called:
        user = self.case.user_module()
        if user is None:
            module = self.placed(CTRModel.from_weights(self._spec, self._weights))
            return Called(module, [self._arrays(batch) for batch in self.batches], _numbers)
        called = self._in_type(user, self.dtype)
        error = _error(called.module, called.inputs[0])
        if error is None:
            return called
        del called  # its tables
        mixed = self._in_type(user, None)
        how = MIXED
        if self.dtype.itemsize == 2:
            cast = Autocast(mixed.module, self.case.device, self.dtype)
            how = AUTOCAST if _error(cast, mixed.inputs[0]) is None else MIXED
        return mixed._replace(note=f"{how}, since in one type: {error}")

    def _in_type(self, user: UserModule, dtype: torch.dtype | None) -> Called:
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
        return [((kind.prepare(x.T.contiguous()), *rest), {}) for (x, *rest), _ in self._arguments]

    @functools.cached_property
    def _arguments(self) -> list[Arguments]:
        device = self.case.device
        return [self._user.arguments(b.ids, b.dense, device, self.dtype) for b in self.batches]


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


def _error(module: nn.Module, inputs: Arguments) -> str | None:
    """Why the module does not take its inputs; short memory is not its fault."""
    args, kwargs = inputs
    try:
        with torch.no_grad():
            module(*args, **kwargs)
    except torch.OutOfMemoryError:
        return None
    except Exception as error:  # whatever its code raises, such as an RNN's ValueError
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return None


def _numbers(logits: Tensor) -> np.ndarray:
    found: np.ndarray = logits.float().cpu().numpy().reshape(-1)
    return found
