"""Export: what cannot be read is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.models.export import export


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not JSON: Expecting value: line 1 column 1"),
        ('{"fields": 1,\n', "is not JSON: .* line 2 column 1"),
        ("[" * 100_000, "is nested too deeply"),
        ("[]", "a model spec must be a mapping, got list"),
    ],
)
def test_a_spec_that_is_none_is_named(tmp_path: Path, text: str, told: str) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(text)

    with pytest.raises(ConfigError, match=rf"spec\.json:? {told}"):
        export(spec, tmp_path / "weights", None, None, tmp_path / "bundle")
