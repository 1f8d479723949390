"""What encodes raw columns by the schema of a bundle, where units are read."""

from __future__ import annotations

import socket

from dpiframe_core.bundle.encoder import bundled_encoder
from dpiframe_core.errors import BundleError
from dpiframe_core.features.encoder import Encoder
from pipeline.errors import UnitFailedError
from pipeline.storage.bundle_cache import bundle_fault, bundle_folder


def open_encoder(location: str, digest: str) -> Encoder:
    """The encoder of a bundle; UnitFailedError."""
    try:
        return bundled_encoder(str(bundle_folder(location, digest)), digest)
    except (BundleError, OSError) as error:
        raise UnitFailedError(
            bundle_fault(location, error),
            f"{error}, on host {socket.gethostname()}: it must not change while a job runs",
        ) from error
