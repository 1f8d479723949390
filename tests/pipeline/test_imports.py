from __future__ import annotations

import gc

import pytest

from pipeline.imports import no_collections


@pytest.fixture(autouse=True)
def _unfreeze():
    yield
    gc.unfreeze()


def test_nothing_is_collected_while_modules_are_imported() -> None:
    with no_collections():
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() > 0


def test_collections_go_on_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), no_collections():
        raise ImportError
    assert gc.isenabled()
