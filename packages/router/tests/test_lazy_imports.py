"""Imports without garbage collection leave it as it was."""

import gc

import pytest

from prefill_router.lazy_imports import without_collection


def test_collection_goes_on_where_threads_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    is_enabled = gc.isenabled
    first = without_collection()
    first.__enter__()
    assert not gc.isenabled()

    def end_first() -> bool:
        """The other thread ends after this one has asked, and before it goes on."""
        answer = is_enabled()
        first.__exit__(None, None, None)
        return answer

    monkeypatch.setattr(gc, "isenabled", end_first)
    try:
        with without_collection():
            pass
        assert is_enabled()
    finally:
        gc.enable()


def test_collection_that_was_disabled_stays_so() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
