"""A bounded list of problems: all are counted, the first ones are listed."""

from __future__ import annotations


class ProblemList:
    """Collects sentences; `str()` gives one line each and how many more there are."""

    def __init__(self, limit: int = 20) -> None:
        self._limit = limit
        self._listed: list[str] = []
        self._count = 0

    def add(self, problem: str) -> None:
        """Count a problem, and keep its text if it is among the first."""
        self._count += 1
        if len(self._listed) < self._limit:
            self._listed.append(problem)

    def __len__(self) -> int:
        """How many problems there are, listed or not."""
        return self._count

    def __str__(self) -> str:
        """Lines that each begin with a line break."""
        lines = [f"\n  - {problem}" for problem in self._listed]
        if self._count > len(self._listed):
            lines.append(f"\n  and {self._count - len(self._listed)} more")
        return "".join(lines)
