"""What a worker process of a local Ray imports before it has work."""

from importlib import import_module

from pipeline.imports import no_collections

with no_collections():
    import_module("pipeline.scoring.flow")
