"""What every manifest needs of a job: its keys without secrets, its name, its size."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.dates import asks_for
from pipeline.config.job import load_config, read_keys
from pipeline.errors import ConfigError
from pipeline.redaction import without_credentials
from pipeline.storage.address import is_remote

RAY_VERSION = "2.60.0"
WEBHOOK = "NOTIFY_WEBHOOK"  # the variable that holds the webhook, where the job has one


@dataclass(frozen=True)
class Deployment:
    """A job and where it shall run. `keys`: its configuration without secrets, paths absolute;
    `date`: what `--date` gets, empty for jobs without placeholders.
    """

    keys: dict[str, Any]
    name: str
    date: str
    webhook: bool
    image: str = "dpiframe:latest"
    namespace: str = "default"
    schedule: str = "0 3 * * *"
    workers: int = 1
    gpus: int = 0  # a worker
    cpus: int = 8  # a worker
    memory: str = "64Gi"  # a worker
    hours: int = 6  # that the job may take

    @property
    def zone(self) -> str:
        """Time zone of the schedule, which is the one of the job's dates."""
        return str(self.keys.get("time_zone") or "UTC")

    @property
    def text(self) -> str:
        """The configuration as YAML."""
        return yaml.safe_dump(self.keys, sort_keys=False, width=100)

    @property
    def submission_id(self) -> str:
        """The same for the same job and date, so that Ray refuses to run it twice."""
        what = json.dumps([self.keys, self.date], sort_keys=True).encode()
        day = f"-{self.date}" if self.date else ""
        return f"{self.name}{day}-{hashlib.sha256(what).hexdigest()[:8]}"

    def arguments(self, config: str, *overrides: str) -> list[str]:
        """The command's words, the webhook left out."""
        date = ["--date", self.date] if self.date else []
        return ["dpiframe", "score", config, *date, *overrides]

    def shell(self, config: str, *overrides: str) -> str:
        """The command for a shell, with the webhook from its variable."""
        hook = f' notify_webhook="${WEBHOOK}"' if self.webhook else ""
        return shlex.join(self.arguments(config, *overrides)) + hook


def deployment(
    config: str, overrides: Sequence[str], date: str | None, name: str | None, **options: Any
) -> Deployment:
    """Read and check a job's configuration; its placeholders stay. ConfigError as for a job."""
    keys, _ = read_keys(config, overrides)
    needed = asks_for(keys)
    usual = {None: "", "date": "yesterday", "hour": "last-hour"}[needed]
    load_config(keys, (), date or usual or None)
    webhook = keys.pop("notify_webhook", None) is not None
    if isinstance(keys.get("mlflow_uri"), str):
        keys["mlflow_uri"] = without_credentials(keys["mlflow_uri"])
    for key in ("bundle", "input", "output"):
        value = keys[key]
        keys[key] = [_absolute(v) for v in value] if isinstance(value, list) else _absolute(value)
    return Deployment(keys, _name(name, config), date or usual, webhook, **options)


def _absolute(path: str) -> str:
    return path if is_remote(path) else str(Path(path).expanduser().absolute())


def _name(name: str | None, config: str) -> str:
    """A name that Kubernetes takes: lower case letters, digits, hyphens, at most 40."""
    made = re.sub(r"[^a-z0-9]+", "-", Path(config).stem.lower()).strip("-")
    chosen = name or f"dpiframe-{made}"[:40].strip("-")
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", chosen):
        raise ConfigError(
            f"--name must be 1 to 40 of a to z, 0 to 9 and -, a letter first, got {chosen!r}"
        )
    return chosen
