"""What the harnesses of faults share: their command line, and the order of the cases."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

DOUBLE_EVERY = 6  # cases
Case = TypeVar("Case", contravariant=True)


class Faults(Protocol, Generic[Case]):
    """Tries cases; `tried` counts them by scenario and kind, `wrong` holds those that went so."""

    tried: Counter[tuple[str, str]]
    wrong: list[str]

    def try_case(self, case: Case) -> None:
        """Do a case, and note what is wrong."""

    def try_double(self) -> None:
        """Do a random pair of faults, and note what is wrong."""


def arguments(doc: str | None, broken: str) -> argparse.Namespace:
    """`seed`, `seconds` and the switch `broken`, which takes away what the harness should miss."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=0, help="0: until every case was tried once"
    )
    parser.add_argument(broken, dest="broken", action="store_true", help="see that it is found")
    return parser.parse_args()


def try_all(faults: Faults[Case], cases: Sequence[Case], wanted: argparse.Namespace) -> int:
    """Each case once, every few of them a pair of faults, pairs until the time is over.

    With `broken`, only until the first wrong one. Returns the exit code.
    """
    print(f"seed {wanted.seed}: {len(cases)} cases", flush=True)
    end = time.monotonic() + wanted.seconds
    for i, case in enumerate(cases):
        if wanted.seconds and time.monotonic() > end:
            break
        if wanted.broken and faults.wrong:
            return 1
        faults.try_case(case)
        if i % DOUBLE_EVERY == 0:
            faults.try_double()
    while time.monotonic() < end:
        faults.try_double()
    for (scenario, kind), count in sorted(faults.tried.items()):
        print(f"{scenario:10}  {kind:20}  {count:6} tried")
    print(f"{sum(faults.tried.values())} tried, {len(faults.wrong)} wrong")
    return 1 if faults.wrong else 0
