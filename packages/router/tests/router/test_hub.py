"""Routers to a hub and back; the hub is one of our own, on 127.0.0.1."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packages.router.tests.fakes.hub import GOOD_TOKEN, FakeHub, serve_hub
from packages.router.tests.fakes.hub_worker import SECRET, HubWorker, hub_worker
from packages.router.tests.router import hub_job
from prefill_router import files
from prefill_router.router import Router, read_light
from prefill_router.router.storage import CHECKED_FILES

pytestmark = pytest.mark.slow

NAME = "somebody/a-router"
Job = Callable[..., dict[str, Any]]


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serve_hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubWorker]:
    with hub_worker(hub_job.__name__, tmp_path_factory.mktemp("worker")) as worker:
        yield worker


@pytest.fixture
def job(hub: FakeHub, worker: HubWorker, tmp_path: Path) -> Job:
    def run(*arguments: str, token: str | None = GOOD_TOKEN, url: str = "") -> dict[str, Any]:
        settings = {"HF_ENDPOINT": url} if url else {}
        return worker.do(hub, tmp_path / "hf", arguments, token=token, settings=settings)

    return run


@pytest.fixture
def router_folder(router: Router, tmp_path: Path) -> Path:
    router.save(tmp_path / "router")
    return tmp_path / "router"


@pytest.fixture
def hub_files(hub: FakeHub, router_folder: Path) -> dict[str, bytes]:
    """The files of a router that somebody put there, among others."""
    hub.repositories[NAME] = {path.name: path.read_bytes() for path in router_folder.iterdir()}
    hub.repositories[NAME] |= {"pytorch_model.bin": b"\x80evil", "code.py": b"raise SystemExit"}
    return hub.repositories[NAME]


def test_to_the_hub_and_back_gives_identical_decisions(
    hub: FakeHub, job: Job, router_folder: Path, router: Router
) -> None:
    address = job("push", str(router_folder), NAME)["answer"]
    assert address.startswith(f"{hub.url}/{NAME}/commit/")
    assert set(hub.repositories[NAME]) == set(CHECKED_FILES) | {"README.md", "SHA256SUMS"}
    for name in CHECKED_FILES:
        assert hub.repositories[NAME][name] == (router_folder / name).read_bytes()
    here = [d.to_dict() for d in router.route_many(hub_job.REQUESTS, lam=0.6)]
    assert job("load", NAME)["answer"] == json.loads(json.dumps(here))
    assert job("load", NAME, hub.commit(NAME))["answer"] == json.loads(json.dumps(here))
    assert job("load", str(router_folder))["answer"] == json.loads(json.dumps(here))


def test_only_the_files_of_a_router_are_downloaded(
    hub: FakeHub, job: Job, hub_files: dict[str, bytes], tmp_path: Path
) -> None:
    assert "answer" in job("load", NAME)
    assert hub.downloaded() == set(CHECKED_FILES) | {"README.md", "SHA256SUMS"} < set(hub_files)
    names = {path.name for path in (tmp_path / "hf").rglob("*")}
    assert "pytorch_model.bin" not in names
    assert "weights.safetensors" in names


def test_what_was_downloaded_is_there_without_the_hub(
    job: Job, hub_files: dict[str, bytes]
) -> None:
    assert hub_files
    online = job("load", NAME)
    assert job("load", NAME, url="http://127.0.0.1:9") == online


@pytest.mark.parametrize("name", CHECKED_FILES)
def test_flipped_byte_on_the_hub_is_refused(
    job: Job, hub_files: dict[str, bytes], name: str
) -> None:
    content = bytearray(hub_files[name])
    content[len(content) // 2] ^= 1
    hub_files[name] = bytes(content)
    reply = job("load", NAME)
    assert reply["error"] == "CorruptError"
    assert f"{name} isn't what was written" in reply["message"]
    assert "the repository itself is at fault" in reply["message"]


@pytest.mark.parametrize("name", ["weights.safetensors", files.CHECKSUMS])
def test_missing_file_on_the_hub_is_refused(
    job: Job, hub_files: dict[str, bytes], name: str
) -> None:
    del hub_files[name]
    reply = job("load", NAME)
    assert reply["error"] == "CorruptError"
    assert f"lacks the file {name}" in reply["message"]


def test_flipped_byte_in_the_cache_is_told_and_the_advice_helps(
    job: Job, hub_files: dict[str, bytes], tmp_path: Path
) -> None:
    good = job("load", NAME)
    path = next((tmp_path / "hf").rglob("weights.safetensors")).resolve()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    reply = job("load", NAME)
    assert reply["error"] == "CorruptError"
    folder = Path(reply["message"].split("remove ")[1].split(" to download")[0])
    assert folder.name == "models--somebody--a-router"
    folder.rename(tmp_path / "removed")
    assert job("load", NAME) == good
    assert hub_files


def test_repository_without_a_router(job: Job, hub: FakeHub) -> None:
    hub.repositories[NAME] = {"config.json": b"{}"}
    reply = job("load", NAME)
    assert reply["error"] == "ConfigError"
    assert "holds no router" in reply["message"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("load", "somebody/nothing"), "no such repository"),
        (("load", NAME, "v9"), "no such revision"),
        (("load", "a/b/c"), "isn't the name of a repository"),
        (("load", "a b"), "isn't the name of a repository"),
        (("load", "x" * 5000), "isn't the name of a repository"),
        (("push", "{folder}", "a b"), "isn't the name of a repository"),
    ],
)
def test_what_the_hub_lacks(
    job: Job,
    hub_files: dict[str, bytes],
    router_folder: Path,
    arguments: tuple[str, ...],
    reason: str,
) -> None:
    assert hub_files
    reply = job(*(part.format(folder=router_folder) for part in arguments))
    assert reply["error"] == "ConfigError"
    assert reason in reply["message"]


@pytest.mark.parametrize("token", [SECRET, SECRET + "\nX: y", SECRET + "ü", None])
def test_wrong_token_is_told_and_not_shown(
    job: Job, hub_files: dict[str, bytes], router_folder: Path, token: str | None
) -> None:
    assert hub_files
    reply = job("push", str(router_folder), NAME, token=token)
    assert reply["error"] == "ConfigError"
    assert "hf auth login" in reply["message"]
    if token is not None:
        assert job("push", str(router_folder), NAME, token)["error"] == "ConfigError"
        assert job("load", NAME, token=token)["error"] == "ConfigError"


def test_hub_that_cannot_be_reached(job: Job, router_folder: Path) -> None:
    for arguments in (("push", str(router_folder), NAME), ("load", NAME)):
        for url in ("http://127.0.0.1:9", "http://no.such.host.invalid", "nonsense"):
            reply = job(*arguments, token=SECRET, url=url)
            assert reply["error"] == "ConfigError"
            assert "HF_ENDPOINT" in reply["message"]


def test_versions_in_a_repository_are_as_in_a_folder(
    router_folder: Path, job: Job, hub: FakeHub
) -> None:
    hub.repositories["you/versions"] = {}
    fingerprint = read_light(router_folder).fingerprint
    assert job("promote", str(router_folder), "you/versions") == {"answer": ["0001", fingerprint]}
    assert job("promote", str(router_folder), "you/versions") == {"answer": ["0002", fingerprint]}
    assert not [name for name in hub.repositories["you/versions"] if name.endswith("probe")]
    reply = job("promote", str(router_folder), "you/versions", token="hf_wrong")
    assert reply["error"] == "ConfigError"
    assert "credentials" in reply["message"]
