"""A fit that can't be written where it should be isn't lost."""

import errno
import os
import re
import tempfile
from pathlib import Path

import pytest

from packages.router.tests.commands import Job, check_refused
from prefill_router.router import Router

pytestmark = pytest.mark.slow


def test_a_finished_fit_survives_a_full_disk(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, elsewhere, save = tmp_path / "full", tmp_path / "elsewhere", Router.save

    def save_if_free(router: Router, folder: Path) -> None:
        if Path(folder).is_relative_to(full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(router, folder)

    monkeypatch.setattr(Router, "save", save_if_free)
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    (tmp_path / "recipe.yaml").write_text("features: prefill\npredictor: constant\n")
    fit = ("fit", job.answers, "--store", job.states, "--recipe", tmp_path / "recipe.yaml")
    message = check_refused("No space left on device", *fit, "--out", full / "router")
    match = re.search(r"was kept in (\S+): copy it", message)
    assert match is not None
    assert Path(match[1]).is_relative_to(elsewhere)
    assert Router.load(match[1]).pool.names


def test_without_space_anywhere_the_error_is_the_systems(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Router, "save", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PREFILL_ROUTER_CACHE", str(tmp_path))
    (tmp_path / "recipe.yaml").write_text("features: prefill\npredictor: constant\n")
    fit = ("fit", job.answers, "--store", job.states, "--recipe", tmp_path / "recipe.yaml")
    check_refused("No space left on device", *fit, "--out", tmp_path / "router")
