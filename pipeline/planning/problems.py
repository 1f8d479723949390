"""A bounded list of problems: all are counted, the first ones are told."""

from __future__ import annotations


class ProblemList:
    """Collects sentences; `str()` gives one line each and how many more there are."""

    def __init__(self, limit: int = 20) -> None:
        self._limit = limit
        self._told: list[str] = []
        self._count = 0

    def add(self, problem: str) -> None:
        """Count a problem, and keep its text if it is among the first."""
        self._count += 1
        if len(self._told) < self._limit:
            self._told.append(problem)

    def __len__(self) -> int:
        """How many problems there are, told or not."""
        return self._count

    def __str__(self) -> str:
        """Lines that each begin with a line break."""
        lines = [f"\n  - {problem}" for problem in self._told]
        if self._count > len(self._told):
            lines.append(f"\n  and {self._count - len(self._told)} more")
        return "".join(lines)
