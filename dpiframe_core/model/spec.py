"""ModelSpec: a CTR model as plain data, the one form that every front end produces.

A spec names its one-hot fields, its dense features and a graph of modules that ends in one logit a
sample. It holds no weights and knows no device; see `builtin` for the built-in models and `modules`
for what a module can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from dpiframe_core.errors import SpecError
from dpiframe_core.model.fields import FieldSpec, ListSpec, Name, SpecPart
from dpiframe_core.model.modules import Inputs, Module, Parameter, Value
from dpiframe_core.program.views import DENSE


class ModelSpec(SpecPart):
    """A CTR model: fields [F], dense features [N], modules in order, the one that is the logit.

    `lists`: which fields or dense features are the elements of a list column. `columns`: the
    columns of those features and lists whose columns in encoded input are not named like them.
    """

    name: str = "model"
    fields: tuple[FieldSpec, ...]
    dense: tuple[Name, ...] = ()
    lists: tuple[ListSpec, ...] = ()
    columns: dict[Name, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    modules: tuple[Module, ...]
    output: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        _no_repeats("field", [f.name for f in self.fields])
        _no_repeats("dense feature", list(self.dense))
        _no_repeats("module", [m.name for m in self.modules])
        if DENSE in (m.name for m in self.modules):
            raise SpecError(f"no module may be named {DENSE!r}: it is the dense features")
        _tables(self.fields)
        _lists(self.lists, self.fields, self.dense)
        named = {*(f.name for f in self.fields), *self.dense, *(each.name for each in self.lists)}
        if unknown := [name for name in self.columns if name not in named]:
            raise SpecError(f"columns names {unknown[0]!r}, which is no feature and no list")
        out = {module.name: value for module, _, value in self.walk()}.get(self.output)
        if out is None:
            raise SpecError(f"output names no module: {self.output!r}")
        if out.width != 1:
            raise SpecError(f"output {self.output} must be 1 wide (the logit), got {out.width}")
        if not self.parameters():
            raise SpecError("a model needs at least one weight")
        return self

    @property
    def has_periods(self) -> bool:
        """Whether ids of some field may stand for others."""
        return any(field.period is not None for field in self.fields)

    @property
    def field_ids(self) -> tuple[tuple[int, int, int, int], ...]:
        """Rows, period, least and last id of each field; empty where no id stands for another."""
        return tuple(f.id_range for f in self.fields) if self.has_periods else ()

    @property
    def without_oov_row(self) -> list[str]:
        """Fields in which an id may be bad, and that have no row for such."""
        return [f.name for f in self.fields if f.oov_row is None and not f.takes_any]

    def walk(self) -> Iterator[tuple[Module, Inputs, Value]]:
        """Each module in order with what it reads and the shape of its output."""
        values = {DENSE: Value((len(self.dense),))}
        for module in self.modules:
            for name in module.inputs:
                if name not in values:
                    raise SpecError(
                        f"module {module.name} reads {name!r}, which no earlier module makes "
                        f"(there are: {', '.join(values)})"
                    )
            inputs = Inputs(self.fields, [values[name] for name in module.inputs])
            values[module.name] = module.infer(inputs)
            yield module, inputs, values[module.name]

    def ending_in(self, module: str) -> ModelSpec:
        """The model as far as one of its modules, whose output may be of any width: an embedding,
        or the logit of another task. SpecError where there is no such module.
        """
        if module not in (each.name for each in self.modules):
            known = ", ".join(each.name for each in self.modules)
            raise SpecError(f"there is no module {module!r}; the model has {known:.500}")
        return self.model_copy(update={"output": module})

    @property
    def width(self) -> int:
        """The numbers a sample that the output is: 1, the logit, unless it is `ending_in` more."""
        return {module.name: value for module, _, value in self.walk()}[self.output].width

    def parameters(self) -> dict[str, Parameter]:
        """Every weight that the model needs, by name ("module/part"), with its shape."""
        return {
            f"{module.name}/{part}": parameter
            for module, inputs, _ in self.walk()
            for part, parameter in module.parameters(inputs).items()
        }

    def check_shapes(self, found: Mapping[str, tuple[int, ...]]) -> None:
        """SpecError unless these are the names and shapes of exactly the model's weights."""
        parameters = self.parameters()
        if missing := sorted(set(parameters) - set(found)):
            raise SpecError(f"weights lack {len(missing)} of the spec's: {', '.join(missing[:8])}")
        if unknown := sorted(set(found) - set(parameters)):
            raise SpecError(f"weights hold {len(unknown)} unknown to the spec: {unknown[:8]}")
        for name, parameter in parameters.items():
            if found[name] != parameter.shape:
                raise SpecError(
                    f"weight {name} must have shape {list(parameter.shape)}, got "
                    f"{list(found[name])}"
                )

    @classmethod
    def parse(cls, data: Any) -> ModelSpec:
        """Read a spec from plain data (JSON); SpecError says what does not fit."""
        if not isinstance(data, dict):
            raise SpecError(f"a model spec must be a mapping, got {type(data).__name__}")
        return cls(**data)


def _no_repeats(kind: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SpecError(f"{kind} name {name!r} is used twice")
        seen.add(name)


def _tables(fields: tuple[FieldSpec, ...]) -> None:
    first: dict[str, FieldSpec] = {}
    for field in fields:
        other = first.setdefault(field.table, field)
        if (other.rows, other.dim) != (field.rows, field.dim):
            raise SpecError(
                f"fields {other.name} and {field.name} share table {field.table} but differ: "
                f"{other.rows} x {other.dim} and {field.rows} x {field.dim}"
            )


def _lists(
    lists: tuple[ListSpec, ...], fields: tuple[FieldSpec, ...], dense: tuple[Name, ...]
) -> None:
    """SpecError unless each list feeds known features of one kind, and none twice."""
    rows = {field.name: field.rows for field in fields}
    _no_repeats("list", [each.name for each in lists])
    _no_repeats("feature of a list", [name for each in lists for name in each.features])
    for each in lists:
        if unknown := [name for name in each.features if name not in rows and name not in dense]:
            raise SpecError(f"list {each.name} feeds {unknown[0]!r}, which is no feature")
        found = {name in rows for name in each.features}
        if len(found) > 1:
            raise SpecError(f"list {each.name} feeds both fields and dense features")
        if found == {True} and not 0 <= each.pad < min(rows[name] for name in each.features):
            raise SpecError(f"list {each.name}: pad {each.pad} is outside its fields' tables")
