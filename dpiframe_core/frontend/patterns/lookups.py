"""Lookups of single fields, gathered into one module in the order in which they are joined."""

from __future__ import annotations

from dpiframe_core.frontend.draft import Compute, Draft, Lookup
from dpiframe_core.frontend.patterns.tidy import is_flat_join, merge_joins
from dpiframe_core.frontend.values import Column

MOST_MERGED = 512  # rows of a merged lookup: a GPU keeps the addresses of a sample's side by side
Entry = tuple[Column, str]  # a column, and the table that it is looked up in


def gather_lookups(draft: Draft) -> None:
    """Runs of rows that a join sets side by side come from one lookup, in that order."""
    _read_in_larger(draft)
    lookups = {m.name: m for m in draft.modules if isinstance(m, Lookup)}
    starts = {name: _starts(draft, m) for name, m in lookups.items()}
    grouped: set[str] = set()
    for join in [m for m in draft.modules if isinstance(m, Compute) and is_flat_join(m)]:
        run: list[str] = []
        runs = [run]
        for name, operand in zip(join.inputs, join.operands, strict=True):
            whole = name in lookups and (operand.offset, operand.size) == (0, starts[name][-1])
            if whole and name not in grouped and name not in run:
                run.append(name)
            elif run:
                run = []
                runs.append(run)
        for names in runs:
            if len(names) > 1:
                grouped.update(names)
                _merge(draft, [lookups[name] for name in names], starts)
    _merge_rest(draft)
    merge_joins(draft)


def _read_in_larger(draft: Draft) -> None:
    """Rows that a larger lookup has side by side are read there, as one item's of a history."""
    lookups = [m for m in draft.modules if isinstance(m, Lookup)]
    places: dict[Entry, list[tuple[Lookup, int]]] = {}
    for lookup in lookups:
        for i, entry in enumerate(_entries(lookup)):
            places.setdefault(entry, []).append((lookup, i))
    for lookup in sorted(lookups, key=lambda m: len(m.columns)):
        entries = _entries(lookup)
        if any(not isinstance(reader, Compute) for reader in draft.readers(lookup.name)):
            continue
        for larger, at in places[entries[0]]:
            size = len(entries)
            if len(larger.columns) > size and _entries(larger)[at : at + size] == entries:
                draft.redirect(lookup.name, larger.name, _starts(draft, larger)[at])
                break
    draft.drop_unused()


def _entries(lookup: Lookup) -> list[Entry]:
    return list(zip(lookup.columns, lookup.tables, strict=True))


def _starts(draft: Draft, lookup: Lookup) -> list[int]:
    """The first column of each entry's row, and the width."""
    found = [0]
    for key in lookup.tables:
        found.append(found[-1] + draft.tables[key].weight.shape[1])
    return found


def _merge(draft: Draft, lookups: list[Lookup], starts: dict[str, list[int]]) -> None:
    """One lookup in place of several; it stands where the first of them stood."""
    merged = Lookup(lookups[0].name, [], [])
    shift = 0
    first = min(draft.modules.index(m) for m in lookups)
    for lookup in lookups:
        if lookup is not lookups[0]:
            draft.redirect(lookup.name, merged.name, shift)
        shift += starts[lookup.name][-1]
        merged.columns += lookup.columns
        merged.tables += lookup.tables
    rest = [m for m in draft.modules if m not in lookups]
    draft.modules = [*rest[:first], merged, *rest[first:]]


def _merge_rest(draft: Draft) -> None:
    """Lookups of one width whose rows nobody joins become one."""
    groups: dict[int, list[Lookup]] = {}
    for lookup in [m for m in draft.modules if isinstance(m, Lookup)]:
        dims = {draft.tables[key].weight.shape[1] for key in lookup.tables}
        if len(dims) != 1 or any(
            not isinstance(reader, Compute) for reader in draft.readers(lookup.name)
        ):
            continue
        group = groups.setdefault(dims.pop(), [])
        if sum(len(m.columns) for m in (*group, lookup)) <= MOST_MERGED:
            group.append(lookup)
    for group in groups.values():
        if len(group) > 1:
            _merge(draft, group, {m.name: _starts(draft, m) for m in group})
