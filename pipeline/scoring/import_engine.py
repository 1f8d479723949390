"""Begins to import what a scorer on a GPU needs, while its worker waits to become one.

PyTorch alone takes seconds of one core. Nothing of CUDA may start here: which GPU a worker gets is
not settled yet.
"""

from __future__ import annotations

import threading
from importlib import import_module

threading.Thread(target=import_module, args=("dpiframe_core.loading",), daemon=True).start()
