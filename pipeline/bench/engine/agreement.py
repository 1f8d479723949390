"""Whether implementations agree with the model in float64, and with one another."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch

from dpiframe_core.engine.precision import HALF_PRECISIONS, LOGIT_BOUNDS
from dpiframe_core.frontend.check import MOST_LOGIT, allowed, rounding_noise, sigmoid
from pipeline.bench.engine.implementations import EAGER, OURS, Implementation, reason
from pipeline.bench.engine.peers import DTYPES
from pipeline.errors import DpiframeError

# Largest tolerated difference of two implementations' logits, scaled by max(1, |logit|).
TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 2e-2, "bf16": 2e-1}
# How a peer was compared where most samples depend on which of equal numbers are taken.
AS_OURS = "compared while topk and sort took the first of equal numbers, as ours do"
AS_EAGER = "of equal numbers it takes others than ours: compared with eager"


class ExactLogits:
    """The model's logits in float64, and what rounding its weights to a precision changes. `own`:
    the difference that is allowed of a module in float32, whose own order of operations may cost
    that much. `rounded_to`: peers' logits are of probabilities of this type, if they are. `eager`:
    the module as it is: where others differ, samples count alone whose logits do not depend on the
    order of equal numbers.
    """

    def __init__(
        self,
        compute: Callable[..., np.ndarray],
        precision: str,
        own: float = 0,
        rounded_to: torch.dtype | None = None,
        eager: Implementation | None = None,
    ) -> None:
        self.precision, self.bound = precision, max(LOGIT_BOUNDS[precision], own)
        self.tolerance = max(TOLERANCES[precision], 2 * own)  # between two implementations
        self.rounded_to, self.eager = rounded_to, eager
        self.left_out = 0
        self._compute = compute
        self.logits = compute()

    def widen(self) -> None:
        """Allow what a module's import would of these samples: a few times as far as float32 takes
        the module from itself. Each of two implementations may be so far away.
        """
        if self.eager is None:
            return
        with contextlib.suppress(torch.OutOfMemoryError):  # it is left out later
            logits = self.eager.logits(0)[: len(self.logits)]
            own = self.least_difference(logits, self.logits, self.bound, self.rounded_to)
            self.bound = allowed(self.bound, own)
            if self.bound > LOGIT_BOUNDS[self.precision]:
                self.tolerance = max(self.tolerance, 2 * self.bound)

    def difference(self, logits: np.ndarray) -> float:
        """The largest difference of `logits` from these, scaled by max(1, |logit|)."""
        return self.least_difference(logits[: len(self.logits)], self.logits, self.bound)

    def least_difference(
        self,
        logits: np.ndarray,
        expected: np.ndarray,
        bound: float,
        rounded_to: torch.dtype | None = None,
    ) -> float:
        """`largest_difference`, where it is beyond the bound of untied samples alone; but of all
        where most are tied.
        """
        found = largest_difference(logits, expected, rounded_to)
        if found <= bound or self._untied is None or self.is_tied:
            return found
        rows = self._untied[: len(logits)]
        self.left_out = int((~self._untied).sum())
        return largest_difference(logits[rows], expected[rows], rounded_to)

    @property
    def is_tied(self) -> bool:
        """Whether fewer than an eighth of the samples are untied."""
        untied = self._untied
        return untied is not None and bool(8 * untied.sum() < len(untied))

    @cached_property
    def _untied(self) -> np.ndarray | None:
        """None: it is not known."""
        if self.eager is None or self.eager.untied is None:
            return None
        try:
            return self.eager.untied(0)
        except torch.OutOfMemoryError:
            return None

    @cached_property
    def rounding(self) -> float:
        """The difference that rounding the weights brings: more where hidden numbers are large."""
        if self.precision not in HALF_PRECISIONS:
            return 0.0
        return self.difference(self._compute(rounded_to=DTYPES[self.precision]))


def largest_difference(
    logits: np.ndarray, expected: np.ndarray, rounded_to: torch.dtype | None = None
) -> float:
    """Scaled by max(1, |expected|). Where a model has no number, none is the same. `rounded_to`:
    the logits are of probabilities of this type: what its rounding may hide does not count, nor
    that 0 or 1 is left where it may be.
    """
    same = (logits == expected) | (np.isnan(logits) & np.isnan(expected))
    away = np.abs(np.subtract(logits, expected, where=~same, out=np.zeros(len(same))))
    scale = np.fmax(1, np.abs(expected))
    if rounded_to is None:
        return float((away / scale).max())
    p, info = sigmoid(expected), torch.finfo(rounded_to)
    hidden = rounding_noise(p, rounded_to, times=1)
    ended = np.where(logits > 0, 1 - p <= info.eps, p <= 2 * info.smallest_normal * info.eps)
    is_end = (np.abs(logits) >= MOST_LOGIT) | np.isinf(hidden)
    ended &= is_end & (np.abs(sigmoid(logits) - p) <= info.eps)
    beyond = np.maximum(away - np.where(np.isinf(hidden), 0, hidden), 0)
    return float(np.where(same | ended, 0, beyond / scale).max())


def scaled_error(logits: np.ndarray, exact: ExactLogits) -> float:
    """The largest scaled difference of our logits from exact ones of the first samples.

    DpiframeError where it is beyond what the engine promises of the precision, and twice what
    rounding the weights to it brings.
    """
    error, bound = exact.difference(logits), exact.bound
    if not error <= bound and not error <= (bound := bound + 2 * exact.rounding):
        raise DpiframeError(f"our logits differ from float64's by {error:.1e}, not {bound:.0e}")
    return error


def agree(
    made: dict[str, Implementation],
    failed: dict[str, str],
    exact: ExactLogits,
    is_imported: bool = False,
) -> float:
    """The largest scaled difference between ours and a peer; peers above the tolerance go from
    `made` to `failed`, and so do those that find no memory. DpiframeError where torch eager
    differs: then ours is wrong. Not so in 16 bits where the model is imported, which has agreed
    with its module in float64: torch rounds the dense features, too, and a number at the end of a
    bucket falls into the next.

    Each of the two may be as far from float64 as `scaled_error` lets ours be. Where most samples
    depend on which of equal numbers are taken, eager is compared while it takes the first, as ours
    does, and others may agree with it instead.
    """
    ours = made[OURS].logits(0)
    largest = 0.0
    eagers: np.ndarray | None = None  # logits, where most samples are tied
    for name in [name for name in made if name != OURS]:
        try:
            logits = made[name].logits(0)
            difference = _difference(logits, ours, exact)
            is_of_ours = True
            if not _is_allowed(difference, exact) and exact.is_tied:
                if name == EAGER and exact.eager and exact.eager.first:
                    difference = _difference(exact.eager.first(0), ours, exact)
                    eagers = logits if _is_allowed(difference, exact) else None
                    made[name] = _noted(made[name], AS_OURS)
                elif eagers is not None:
                    difference, is_of_ours = _difference(logits, eagers, exact), False
                    made[name] = _noted(made[name], AS_EAGER)
            if not _is_allowed(difference, exact):
                raise DpiframeError(f"the logits of {name} differ from ours by {difference:.1e}")
            largest = max(largest, difference if is_of_ours else 0.0)
        except Exception as error:
            ends = name == EAGER and not isinstance(error, torch.OutOfMemoryError)
            if ends and not (is_imported and exact.precision in HALF_PRECISIONS):
                raise DpiframeError(f"{EAGER}: {reason(error)}") from error
            failed[name] = reason(error)
        if name in failed:
            made.pop(name).close()
            free_memory()
    return largest


def _noted(made: Implementation, note: str) -> Implementation:
    return made._replace(note=f"{made.note}; {note}" if made.note else note)


def _difference(logits: np.ndarray, others: np.ndarray, exact: ExactLogits) -> float:
    return exact.least_difference(logits, others, exact.tolerance, exact.rounded_to)


def _is_allowed(difference: float, exact: ExactLogits) -> bool:
    return difference <= exact.tolerance or difference <= exact.tolerance + 4 * exact.rounding


def free_memory() -> None:
    """Of implementations that are gone."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
