"""`dpiframe track`: send the events that wait in an output's spool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConfigError, ResumableError
from pipeline.publishing.output import open_output
from pipeline.redaction import without_credentials
from pipeline.storage.address import is_remote
from pipeline.storage.mlflow_access import resolve_uri
from pipeline.tracking.mlflow_store.sender_process import LOG_FILE, SenderProcess
from pipeline.tracking.settings import store_name
from pipeline.tracking.spool import StoreState, read_run, run_dirs


@dataclass
class Replayed:
    """How many records were sent, where to, and the run of the last ones."""

    sent: int
    uri: str
    run_id: str | None
    run_url: str | None
    warnings: list[str]

    def __str__(self) -> str:
        what = f"sent {self.sent} records" if self.sent else "nothing left to send"
        lines = [f"{what} to {self.uri}", f"run {self.run_url or self.run_id}"]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def replay(output: str | Path, uri: str | None, timeout_s: float) -> Replayed:
    """Send to `uri`, or to the store of the last job in `output`, for at most `timeout_s`.

    Raises ConfigError when nothing was ever tracked there, ResumableError when records are left.
    """
    if not is_remote(str(output)) and not Path(output).is_dir():
        raise ConfigError(f"{output} is not a folder; give the output of a job")
    folder = open_output(output).tracking
    runs = run_dirs(folder)
    starts = [e for run in runs for e in read_run(run) if e["kind"] == "start"]
    if not starts:
        raise ConfigError(f"{output} holds no tracking records ({folder} has no start of a job)")
    store = resolve_uri(uri or starts[-1]["uri"])
    sender = SenderProcess(folder, store, live=None)
    sender.finish(timeout_s)
    shown = without_credentials(store)
    if sender.left is None and sender.error is None:
        sender.error = f"the sender ended early, see {folder / LOG_FILE}"
    if sender.left != 0:
        raise ResumableError(
            f"{len(sender.sent)} records were sent to {shown}, the rest waits in {folder}: "
            f"{sender.error}; run the same command again, or name another --mlflow-uri"
        )
    state = StoreState.load(runs[-1] / f"store-{store_name(store)}.json", shown)
    return Replayed(len(sender.sent), shown, state.run_id, state.url, sender.warnings)
