"""Where tracking records of outputs in stores lie: a local folder of the user."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path


def tracking_folder(address: str) -> Path:
    """The folder for the records of the output at an address; it is not made.

    Below `XDG_STATE_HOME`, or `~/.local/state` where that is not set.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    last = re.sub(r"[^\w.=-]+", "_", address.rstrip("/").rpartition("/")[2])[:60]
    return base / "dpiframe" / "tracking" / f"{last}-{digest}"
