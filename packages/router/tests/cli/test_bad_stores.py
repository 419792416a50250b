"""Stores and routers that can't be used, and outputs that can't be written."""

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from packages.router.tests.commands import (
    SEALED_FIT,
    Job,
    check_malformed,
    check_refused,
    flip,
    run,
    run_ok,
    truncate,
)
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router.data import write_dataset
from prefill_router.router.storage import CHECKED_FILES
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

QUICK = ("--dim", 4)


def readers(job: Job, out: Path) -> dict[str, tuple[object, ...]]:
    """Every command that reads a store."""
    return {
        "layers": ("layers", job.answers, "--store", job.states, *QUICK, "--out", out),
        "sweep": ("sweep", job.answers, "--store", job.states, *QUICK, "--out", out),
        "fit": (*SEALED_FIT, job.answers, "--store", job.states, *QUICK, "--out", out),
        "evaluate": (
            *("evaluate", job.router, "--data", job.answers, "--store", job.states),
            *("--out", out, "--resamples", 20),
        ),
    }


def a_shard(store: Path, suffix: str) -> Path:
    return next((store / "shards").glob(f"*.{suffix}"))


def flip_every_tensor(store: Path) -> None:
    for place in range(20):  # a command reads some of them
        flip(a_shard(store, "safetensors"), place=0.3 + place / 30)


BAD_STORES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (shutil.rmtree, "doesn't exist"),
    "empty": (lambda s: (shutil.rmtree(s), s.mkdir()), "isn't a store of states"),
    "file": (lambda s: (shutil.rmtree(s), s.write_text("x")), "isn't a store of states"),
    "no manifest": (lambda s: (s / "manifest.json").unlink(), "isn't a store of states"),
    "flipped manifest": (lambda s: flip(s / "manifest.json"), "manifest.json"),
    "empty manifest": (lambda s: (s / "manifest.json").write_text(""), "isn't JSON"),
    "deep manifest": (lambda s: (s / "manifest.json").write_text("[" * 99_999), "isn't JSON"),
    "missing shard": (lambda s: a_shard(s, "safetensors").unlink(), "safetensors is missing"),
    "truncated shard": (lambda s: truncate(a_shard(s, "safetensors")), "bytes, but"),
    "flipped shard": (flip_every_tensor, "isn't what was written"),
    "flipped index": (lambda s: flip(a_shard(s, "json")), "json"),
    "truncated index": (lambda s: truncate(a_shard(s, "json")), "isn't JSON"),
}


@pytest.mark.parametrize("command", ["layers", "sweep", "fit", "evaluate"])
@pytest.mark.parametrize("bad", BAD_STORES)
def test_store_that_cannot_be_used(copy: Job, tmp_path: Path, bad: str, command: str) -> None:
    breaking, reason = BAD_STORES[bad]
    breaking(copy.states)
    arguments = readers(copy, tmp_path / "out")[command]
    check_refused(reason, *arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["layers", "sweep", "fit"])
def test_unfinished_store_says_how_to_finish_it(job: Job, tmp_path: Path, command: str) -> None:
    write_dataset(make_routing_dataset(queries=90), tmp_path / "more")
    arguments = readers(job, tmp_path / "out")[command]
    more = [tmp_path / "more" if part == job.answers else part for part in arguments]
    check_refused("lacks the states of .* finish it with: prefill-router encode", *more)


def test_store_of_another_encoder_is_no_use_to_a_router(job: Job, tmp_path: Path) -> None:
    other = save_tiny_encoder(tmp_path / "other" / "tiny", seed=1)  # the same name, other weights
    states = tmp_path / "states"
    run_ok("encode", job.answers, "--encoder", other, "--out", states)
    evaluate = ("evaluate", job.router, "--data", job.answers, "--store", states, "--resamples", 0)
    check_refused("revision is", *evaluate, "--encoder-folder", other, "--out", tmp_path / "report")
    check_refused("revision is", "encode", job.answers, "--encoder", other, "--out", job.states)
    check_refused("revision is", "route", job.router, "Why?", "--encoder-folder", other)


def test_encoder_that_is_not_there_is_named(job: Job, tmp_path: Path) -> None:
    check_refused("tiny", "route", job.router, "Why?")
    evaluate = ("evaluate", job.router, "--data", job.answers, "--out", tmp_path / "report")
    check_refused("tiny", *evaluate)
    check_refused(
        "isn't a folder", "encode", job.answers, "--encoder", "./no", "--out", tmp_path / "s"
    )
    (tmp_path / "empty").mkdir()
    encode = ("encode", job.answers, "--encoder", tmp_path / "empty", "--out", tmp_path / "s")
    check_refused("has no config.json", *encode)


@pytest.mark.parametrize("broken", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("breaking", [truncate, Path.unlink, lambda path: path.write_bytes(b"")])
def test_broken_encoder_is_told(
    copy: Job, tmp_path: Path, broken: str, breaking: Callable[[Path], object]
) -> None:
    breaking(copy.tiny / broken)
    encode = ("encode", copy.answers, "--encoder", copy.tiny, "--out", tmp_path / "states")
    check_refused(".", *encode)
    assert not (tmp_path / "states").exists()


def route_users(job: Job, out: Path) -> dict[str, tuple[object, ...]]:
    """Every command that reads a router."""
    return {
        "evaluate": (
            *("evaluate", job.router, "--data", job.answers, "--store", job.states),
            *("--out", out, "--resamples", 20),
        ),
        "route": ("route", job.router, "Why?", "--encoder-folder", job.tiny),
        "reprice": ("reprice", job.router, "--prices", job.answers / "pool.yaml"),
        "show": ("show", job.router),
    }


BAD_ROUTERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (shutil.rmtree, "isn't a router's folder"),
    "empty": (lambda r: (shutil.rmtree(r), r.mkdir()), "isn't a router's folder"),
    "file": (lambda r: (shutil.rmtree(r), r.write_text("x")), "isn't a router's folder"),
    "no sums": (lambda r: (r / "SHA256SUMS").unlink(), "lacks the file SHA256SUMS"),
    **{
        f"flipped {n}": (lambda r, n=n: flip(r / n), "isn't what was written")
        for n in CHECKED_FILES
    },
    **{f"truncated {n}": (lambda r, n=n: truncate(r / n), "isn't what was") for n in CHECKED_FILES},
    **{f"no {n}": (lambda r, n=n: (r / n).unlink(), f"lacks the file {n}") for n in CHECKED_FILES},
}


@pytest.mark.parametrize("bad", BAD_ROUTERS)
def test_router_that_cannot_be_used(copy: Job, tmp_path: Path, bad: str) -> None:
    breaking, reason = BAD_ROUTERS[bad]
    breaking(copy.router)
    for arguments in route_users(copy, tmp_path / "out").values():
        check_refused(reason, *arguments)
    assert not (tmp_path / "out").exists()


def test_card_is_not_needed(copy: Job) -> None:
    (copy.router / "README.md").unlink()
    assert run("show", copy.router).code in (0, 1)
    check_refused("README.md", "show", copy.router)
    run_ok("show", copy.router, "--json")


def test_router_of_other_answers(job: Job, tmp_path: Path) -> None:
    other_dataset = make_routing_dataset(queries=40, seed=9)
    renamed = other_dataset.select([q for q in other_dataset.query_ids if int(q[1:]) > 20])
    write_dataset(renamed, tmp_path / "others")
    evaluate = ("evaluate", job.router, "--data", tmp_path / "others", "--out", tmp_path / "report")
    check_refused("in the test part .* say --part unseen", *evaluate)
    check_malformed("must be one of", *evaluate, "--part", "exam")
    check_refused("no part 'calibration'", *evaluate, "--part", "calibration")
    write_dataset(other_dataset.select(targets=["target-0", "target-1"]), tmp_path / "fewer")
    fewer = ("evaluate", job.router, "--data", tmp_path / "fewer", "--part", "all")
    check_refused("lacks the router's targets", *fewer, "--out", tmp_path / "report")
    assert not (tmp_path / "report").exists()


def writers(to: Path, *, data: Path) -> dict[str, tuple[object, ...]]:
    """Every command that writes; `data` need not exist."""
    table = data / "answers.csv"
    return {
        "import": ("import", "long", table, "--out", to),
        "split": ("split", data, "--out", to),
        "layers": ("layers", data, "--store", data, "--out", to),
        "sweep": ("sweep", data, "--store", data, "--out", to),
        "fit": ("fit", "--no-verdict", "--test=0.15", data, "--store", data, "--out", to),
        "evaluate": ("evaluate", data, "--data", data, "--out", to),
    }


@pytest.mark.parametrize("command", ["import", "split", "layers", "sweep", "fit", "evaluate"])
def test_output_is_checked_before_any_work(tmp_path: Path, command: str) -> None:
    """The inputs don't exist, and the message is of the output."""
    nothing = tmp_path / "nothing"
    file = tmp_path / "file.txt"
    file.write_text("mine")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "diary.txt").write_text("mine")
    if command != "split":  # it may replace a file
        check_refused(
            "file.txt.*(exists and isn't|is a file)", *writers(file, data=nothing)[command]
        )
    under = writers(file / "deep" / "out", data=nothing)[command]
    check_refused("can't be created: .*file.txt is a file", *under)
    if command not in ("layers", "sweep"):  # they add figures to a folder
        reason = "foreign (exists and isn't|is a folder)"
        check_refused(reason, *writers(foreign, data=nothing)[command])
    assert file.read_text() == (foreign / "diary.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_store_is_not_put_over_something_else(job: Job, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "diary.txt").write_text("mine")
    encode = ("encode", job.answers, "--encoder", job.tiny, "--out")
    check_refused("exists and isn't a store", *encode, tmp_path / "foreign")
    check_refused("is a file", *encode, tmp_path / "foreign" / "diary.txt")
    check_refused(
        "is a file|ot a directory", *encode, tmp_path / "foreign" / "diary.txt" / "states"
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["foreign", "diary.txt"]
    out = ("--prices", job.answers / "pool.yaml", "--out", tmp_path / "foreign")
    check_refused("exists and isn't a router", "reprice", job.router, *out)


def test_a_name_that_no_file_system_takes(job: Job, tmp_path: Path) -> None:
    for name in ("x" * 5000, "x" * 250):
        for arguments in writers(tmp_path / name, data=job.answers).values():
            result = run(*arguments)
            assert result.code == 1
            assert result.err.startswith("error: ")
        for arguments in (("describe", name), ("show", name), ("route", name, "Why?")):
            result = run(*arguments)
            assert result.code == 1
            assert result.err.startswith("error: ")


def test_outputs_that_are_links_keep_being_links(copy: Job, tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(copy.router)
    run_ok("reprice", link, "--prices", copy.answers / "pool.yaml", "--date", "2027-01-01")
    assert link.is_symlink()
    content = json.loads(run_ok("show", copy.router, "--json"))
    assert content["pool"]["prices_date"] == "2027-01-01"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_folder_that_may_not_be_written_to(job: Job, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    try:
        (locked / "try").mkdir()
    except PermissionError:
        for arguments in writers(locked / "out", data=job.answers).values():
            check_refused("isn't writable", *arguments)
    else:
        pytest.skip("this user may write everywhere")
    finally:
        locked.chmod(stat.S_IRWXU)


NONSENSE: dict[str, list[tuple[tuple[object, ...], str]]] = {
    "fit": [
        (("--mode", "many"), "--mode is 'many'"),
        (("--select", "best"), "isn't a site"),
        (("--select", "mean.99"), "lacks the site mean.99"),
        (("--scope", "none"), "--scope is 'none'"),
        (("--pooling", "max"), "--pooling is 'max'"),
        (("--dim", 0), "--dim is 0"),
        (("--dim", -3), "--dim is -3"),
        (("--seed", -1), "--seed is -1"),
        (("--mode", "per_model"), "assign"),
        (("--mode", "per_model", "--assign", "target-0"), "write it as TARGET=VALUE"),
        (("--mode", "per_model", "--assign", "nobody=tiny"), "nobody|target-0"),
        (("--mode", "per_model", "--assign", "target-0=other"), "no store has the encoders"),
        (("--assume-output-tokens", "nan"), "--assume-output-tokens is nan"),
        (("--assume-output-tokens", -5), "--assume-output-tokens is -5"),
        (("--device", "cuda:99"), "the device 'cuda:99'"),
    ],
    "layers": [
        (("--dim", 0), "--dim is 0"),
        (("--pooling", "max"), "--pooling is 'max'"),
    ],
    "sweep": [(("--dim", -1), "--dim is -1"), (("--pooling", ""), "--pooling is ''")],
    "evaluate": [
        (("--resamples", -1), "--resamples is -1"),
        (("--seed", -1), "--seed is -1"),
        (("--step", 0), "--step is 0"),
        (("--step", "nan"), "--step is nan"),
        (("--step", 2), "--step is 2"),
        (("--device", "toaster"), "the device 'toaster' is unknown"),
    ],
}


@pytest.mark.parametrize(
    ("command", "number"), [(c, i) for c in NONSENSE for i in range(len(NONSENSE[c]))]
)
def test_options_that_make_no_sense(job: Job, tmp_path: Path, command: str, number: int) -> None:
    options, reason = NONSENSE[command][number]
    words = reason.startswith("--") or reason in ("isn't a site", "write it as TARGET=VALUE")
    code = 2 if words else 1
    check_refused(reason, *readers(job, tmp_path / "out")[command], *options, code=code)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--max-tokens", 0), "--max-tokens is 0"),
        (("--max-tokens", -4), "--max-tokens is -4"),
        (("--max-tokens", 4096), "max_tokens is 4096"),
        (("--batch-tokens", 0), "--batch-tokens is 0"),
        (("--batch-tokens", -5), "--batch-tokens is -5"),
        (("--device", "toaster"), "device"),
        (("--revision", "main"), "local folder"),
        (("--layers", "3"), "layers 0 to 2"),
        (("--layers", "0-99999999999"), "--layers is"),
    ],
)
def test_encoding_options_that_make_no_sense(
    job: Job, tmp_path: Path, options: tuple[object, ...], reason: str
) -> None:
    encode = ("encode", job.answers, "--encoder", job.tiny, "--out", tmp_path / "states")
    check_refused(reason, *encode, *options, code=2 if reason.startswith("--") else 1)
