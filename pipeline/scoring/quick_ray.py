"""A local Ray without the server of its dashboard, which it starts, and awaits, even unwanted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def without_dashboard() -> Iterator[None]:
    """A Ray that starts inside the block is ready some seconds sooner."""
    from ray._private.node import Node

    serve = Node.start_api_server

    def nothing(node: Any, **keys: Any) -> None:
        """The place of `start_api_server`; its `include_dashboard=False` would start a server."""

    Node.start_api_server = nothing
    try:
        yield
    finally:
        Node.start_api_server = serve
