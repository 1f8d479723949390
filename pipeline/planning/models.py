"""The bundles of a job: opened, checked against one input, their columns joined to be read once."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dpiframe_core.bundle.reading import Bundle
from dpiframe_core.errors import SpecError
from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError, ContractError, ResumableError
from pipeline.planning.columns import Columns, ListColumn, mapped_names
from pipeline.planning.contract import check_contract, column_limits
from pipeline.planning.footers import Limits
from pipeline.planning.inputs import InputFile
from pipeline.planning.job_plan import PlannedModel
from pipeline.planning.row_cost import ModelCost, model_cost
from pipeline.storage.address import is_registered, is_remote
from pipeline.storage.bundle_cache import open_bundle_at
from pipeline.storage.registered import Registered, resolve_registered


class Opened(NamedTuple):
    """An opened bundle; `name`: its key in `bundles`, empty for `bundle`."""

    name: str
    bundle: Bundle
    location: str
    registered: Registered | None

    @property
    def called(self) -> str:
        """What messages call it."""
        return f"bundle {self.name!r}" if self.name else "the bundle"


class JoinedColumns(NamedTuple):
    """All columns that are read, how the bundles beside the first use them, and how many ids and
    dense features a row has."""

    columns: Columns
    others: tuple[PlannedModel, ...]
    ids: int
    dense: int


def open_bundles(config: JobConfig) -> list[Opened]:
    """`bundle`, then `bundles`. ConfigError, or ResumableError where a store is out of reach."""
    return [
        _open(name, where, config) for name, where in {"": config.bundle, **config.bundles}.items()
    ]


def with_pinned_bundles(config: JobConfig, opened: Sequence[Opened]) -> JobConfig:
    """The job with the version in place of each alias of a registry."""
    first, *others = (
        model.registered.pinned if model.registered else where
        for model, where in zip(opened, [config.bundle, *config.bundles.values()], strict=True)
    )
    bundles = dict(zip(config.bundles, others, strict=True))
    return config.model_copy(update={"bundle": first, "bundles": bundles})


def joined_limits(opened: Sequence[Opened], config: JobConfig) -> Limits:
    """The columns whose footer statistics are checked, with the range that every bundle allows."""
    joined: dict[str, tuple[float, float] | None] = {}
    for model in opened:
        own = _own_config(model, opened, config)
        for column, limit in column_limits(model.bundle.spec, model.bundle.schema, own).items():
            before = joined.get(column)
            if before is not None and limit is not None:
                limit = max(before[0], limit[0]), min(before[1], limit[1])
            joined[column] = limit or before
    return joined


def check_and_join(
    files: Sequence[InputFile], opened: Sequence[Opened], config: JobConfig
) -> JoinedColumns:
    """Check the input against each bundle. ContractError and ConfigError as `check_contract`.

    The form and the keys are those that the first bundle settles.
    """
    first, *rest = opened
    columns = check_contract(
        files, first.bundle.spec, first.bundle.schema, _own_config(first, opened, config)
    )
    settled = {"form": columns.form, "key_columns": list(columns.key_columns)}
    config = config.model_copy(update=settled)
    raw = columns.form == "raw"
    encoders = [first]
    starts = [(0, 0)]
    ids, dense = len(first.bundle.spec.fields), len(first.bundle.spec.dense)
    others = []
    for model in rest:
        spec = model.bundle.spec
        try:
            own = check_contract(
                files, spec, model.bundle.schema, _own_config(model, opened, config)
            )
        except (ConfigError, ContractError) as error:
            raise type(error)(f"{model.called}: {error}") from None
        encodes = False
        if raw:
            alike = next((i for i, e in enumerate(encoders) if _encode_alike(e, model)), None)
            if encodes := alike is None:
                alike = len(encoders)
                encoders.append(model)
                starts.append((ids, dense))
                ids, dense = ids + len(spec.fields), dense + len(spec.dense)
            id_start, dense_start = starts[alike]
            sources = dict.fromkeys((*columns.source_columns, *own.source_columns))
            columns = columns.model_copy(update={"source_columns": tuple(sources)})
            id_places = tuple(range(id_start, id_start + len(spec.fields)))
            dense_places = tuple(range(dense_start, dense_start + len(spec.dense)))
        else:
            columns, id_places, dense_places = join_encoded(columns, own)
            ids, dense = len(columns.id_columns), len(columns.dense_columns)
        others.append(
            PlannedModel(
                name=model.name,
                location=model.location,
                digest=model.bundle.digest,
                ids=id_places,
                dense=dense_places,
                encodes=encodes,
            )
        )
    others += _outputs(first, config)
    return JoinedColumns(columns, tuple(others), ids, dense)


def _outputs(first: Opened, config: JobConfig) -> Iterator[PlannedModel]:
    spec = first.bundle.spec
    for name, module in config.outputs.items():
        try:
            width = spec.ending_in(module).width
        except SpecError as error:
            raise ConfigError(f"outputs, {name}: {error}") from None
        yield PlannedModel(
            name=name,
            location=first.location,
            digest=first.bundle.digest,
            ids=tuple(range(len(spec.fields))),
            dense=tuple(range(len(spec.dense))),
            output=module,
            width=width,
        )


def join_encoded(
    columns: Columns, more: Columns
) -> tuple[Columns, tuple[int, ...], tuple[int, ...]]:
    """The columns with what `more` reads and they do not, behind what they have; the places of its
    ids and of its dense features among them. Lists are shared where they are padded alike.
    """
    ids, dense = _elements(columns, False), _elements(columns, True)
    more_ids, more_dense = _elements(more, False), _elements(more, True)
    ids += [element for element in dict.fromkeys(more_ids) if element not in ids]
    dense += [element for element in dict.fromkeys(more_dense) if element not in dense]
    lists = list(columns.lists)
    known = {_like(each) for each in lists}
    for each in more.lists:
        if _like(each) not in known:
            elements, all_of = (more_dense, dense) if each.dense else (more_ids, ids)
            places = tuple(all_of.index(elements[place]) for place in each.places)
            lists.append(each.model_copy(update={"places": places}))
    joined = columns.model_copy(
        update={
            "id_columns": tuple(element.column for element in ids),
            "dense_columns": tuple(element.column for element in dense),
            "lists": tuple(lists),
        }
    )
    id_places = tuple(ids.index(element) for element in more_ids)
    return joined, id_places, tuple(dense.index(element) for element in more_dense)


def joined_cost(opened: Sequence[Opened], config: JobConfig) -> ModelCost:
    """What all models together hold, and cost for a row; each of `outputs` as much as `bundle`. Of
    `bundle` and those of segments, one of which scores a row, the operations of the costliest.
    """
    costs = {model.name: model_cost(model.bundle.spec).model_dump() for model in opened}
    each = [*costs.values(), *[costs[""]] * len(config.outputs)]
    total = {name: sum(cost[name] for cost in each) for name in costs[""]}
    of_segments = [costs[name]["operations"] for name in {"", *config.bundle_of.values()}]
    total["operations"] += max(of_segments) - sum(of_segments)
    return ModelCost(**total)


class _Element(NamedTuple):
    """A column, or an element of a list that is padded in one way."""

    column: str
    like: tuple[object, ...] = ()
    position: int = 0


def _elements(columns: Columns, dense: bool) -> list[_Element]:
    found = [_Element(name) for name in (columns.dense_columns if dense else columns.id_columns)]
    for each in columns.lists:
        if each.dense == dense:
            for position, place in enumerate(each.places):
                found[place] = _Element(each.column, _like(each), position)
    return found


def _like(each: ListColumn) -> tuple[object, ...]:
    return (each.column, each.dense, len(each.places), each.pad, each.side, each.keep)


def _encode_alike(one: Opened, other: Opened) -> bool:
    """Whether two bundles make the same ids and dense features of raw columns."""
    ours, theirs = one.bundle.vocabularies, other.bundle.vocabularies
    return (
        one.bundle.schema == other.bundle.schema
        and ours.keys() == theirs.keys()
        and all(ours[name].equals(theirs[name]) for name in ours)
    )


def _own_config(model: Opened, opened: Sequence[Opened], config: JobConfig) -> JobConfig:
    """The job with those of `field_columns` that the model knows; the first gets what none knows,
    and refuses it.
    """
    if len(opened) == 1:
        return config
    known = [mapped_names(each.bundle.spec) for each in opened]
    own = mapped_names(model.bundle.spec)
    unknown = set(config.field_columns).difference(*known)
    wanted = own | (set() if model.name else unknown)
    kept = {name: column for name, column in config.field_columns.items() if name in wanted}
    return config.model_copy(update={"field_columns": kept})


def _open(name: str, where: str, config: JobConfig) -> Opened:
    registered = resolve_registered(where, config.mlflow_uri) if is_registered(where) else None
    location = registered.location if registered else where
    called = f"bundle {name!r}" if name else "the bundle"
    try:
        bundle = open_bundle_at(location)
    except (ValueError, OSError) as error:
        if is_remote(location) and getattr(error, "errno", None) == errno.EIO:
            raise ResumableError(f"{called} is out of reach: {error}; run it again") from None
        raise ConfigError(f"{called} cannot be used: {error}") from None
    if registered is not None:
        registered.check(bundle.digest)
    return Opened(name, bundle, location, registered)
