"""Two measurements of the engine side by side: did a build, or a setting, make it slower?

Each was taken beside the same peer, in turns with it, so that a machine that is busier or slower
for a while is so for both: compared is how much faster than the peer the engine was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.bench.engine.latency import EngineReport
from pipeline.errors import ConfigError
from pipeline.evaluation.gates import SIGNIFICANT, Verdict, in_words

LEAST_LOADS = 8
# Options of the engine, which may differ; all others say what work is done.
SETTINGS = {"policy", "streams", "graphs", "one_kernel", "lookup", "fusion", "peers"}
SETTINGS |= {"repeats", "loads"}
# What describes a built-in model, which a bundle or a module replaces.
BUILT_IN = {"model", "fields", "dense", "dim", "hidden", "scale"}


class EngineComparison(BaseModel):
    """`differs`: settings, commit, machine: a value each. `peer`: beside which both were timed."""

    model_config = ConfigDict(frozen=True)

    differs: dict[str, tuple[str, str]]
    peer: str
    over_peer: tuple[float, float]  # times faster than it
    verdict: Verdict


def read_engine_report(path: Path) -> EngineReport:
    """What `bench engine --json` wrote. ConfigError: the file is not such a one."""
    try:
        return EngineReport.model_validate_json(path.read_text())
    except ValidationError as error:
        first = error.errors()[0]
        why = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise ConfigError(f"{path} is no JSON of `dpiframe bench engine`: {why}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no JSON of `dpiframe bench engine`: {error}") from None


def compare_engines(base: EngineReport, candidate: EngineReport) -> EngineComparison:
    """ConfigError: they did other work, or have no peer in common."""
    left, right = (report.case.model_dump(mode="json") for report in (base, candidate))
    work = left.keys() - SETTINGS
    if base.case.bundle or base.case.module:
        work -= BUILT_IN
    if other := _differing(left, right, work):
        names = "; ".join(f"{name}: {a}, {b}" for name, (a, b) in other.items())
        raise ConfigError(f"the two measured different work ({names}): measure one of them again")
    shared = [name for name in base.over_ours if name in candidate.over_ours]
    if not shared:
        raise ConfigError("the two were not measured beside the same peer: use --peers plain")
    machines = _differing(base.machine, candidate.machine, {*base.machine, *candidate.machine})
    differs = _differing(left, right, SETTINGS - {"repeats", "loads", "peers"}) | machines
    differs |= _differing({"commit": base.commit}, {"commit": candidate.commit}, ["commit"])

    def noise_beside(name: str) -> float:
        ratios = [report.over_ours[name] for report in (base, candidate)]
        return math.hypot(*(one.error / one.ratio for one in ratios))

    peer = min(shared, key=noise_beside)
    was, now = base.over_ours[peer], candidate.over_ours[peer]
    loads = min(base.case.loads, candidate.case.loads)
    if loads < LEAST_LOADS:
        text = f"cannot tell: {loads} loads, {LEAST_LOADS} are needed (--loads {LEAST_LOADS})"
        verdict = Verdict("engine", None, None, text)
    else:
        relative = now.ratio / was.ratio - 1
        noise = SIGNIFICANT * now.ratio / was.ratio * noise_beside(peer)
        words = in_words(relative, noise, "faster", "slower")
        verdict = Verdict("engine", relative, noise, words)
    return EngineComparison(
        differs=differs, peer=peer, over_peer=(was.ratio, now.ratio), verdict=verdict
    )


def show(found: EngineComparison, title: str) -> str:
    """The comparison as text."""
    lines = [title, *(f"  {name}: {a} -> {b}" for name, (a, b) in found.differs.items())]
    was, now = found.over_peer
    lines.append(f"times faster than {found.peer}: {was:.3f} -> {now:.3f}")
    return "\n".join([*lines, f"engine: {found.verdict.text}"])


def _differing(
    left: dict[str, Any], right: dict[str, Any], names: Iterable[str]
) -> dict[str, tuple[str, str]]:
    return {
        name: (str(left.get(name)), str(right.get(name)))
        for name in sorted(names)
        if left.get(name) != right.get(name)
    }
