"""Clients' keys: finding them, their file, the command, their limits."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from packages.gateway.tests.guard.guarded_server import build_key
from packages.router.tests.commands import check_malformed, check_refused, run_ok
from prefill_router.errors import ConfigError
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard import (
    ClientKey,
    ClientKeys,
    KeyLimits,
    RequestSlots,
    key_budgets,
    read_keys,
)
from prefill_router_gateway.guard.key_file import add_key, digest, new_key
from prefill_router_gateway.settings import BudgetSettings

SECRET = "pr-the-secret-of-alice-0123456789"
HASH = digest(SECRET)


class Clock:
    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def find_name(keys: ClientKeys, authorization: bytes | None, x_api_key: bytes | None) -> str | None:
    key = keys.find(authorization, x_api_key)
    return key and key.name


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "name"),
    [
        (f"Bearer {SECRET}", None, "alice"),
        (f"bearer  {SECRET} ", None, "alice"),
        (None, SECRET, "alice"),
        ("Bearer other", SECRET, "alice"),
        (f"Bearer {SECRET}", "other", "alice"),
        (SECRET, None, None),
        (f"Basic {SECRET}", None, None),
        (f"Bearer {SECRET}x", None, None),
        (f"Bearer {HASH}", HASH, None),
        ("Bearer ", "", None),
        (None, None, None),
    ],
)
def test_a_key_is_found_in_either_header(
    authorization: str | None, x_api_key: str | None, name: str | None
) -> None:
    keys = ClientKeys([build_key("bob", "pr-b"), build_key("alice", SECRET)])
    headers = [None if text is None else text.encode() for text in (authorization, x_api_key)]
    assert find_name(keys, *headers) == name


def test_a_key_that_has_expired_is_none() -> None:
    clock = Clock()
    day = build_key("day", "pr-day", expires="2026-01-31")
    moment = build_key("moment", "pr-moment", expires="2026-01-31T12:00:00+02:00")
    keys = ClientKeys([day, moment], clock=clock)

    def list_valid(hour: int, minute: int) -> list[bool]:
        clock.now = datetime(2026, 1, 31, hour, minute, tzinfo=UTC).timestamp()
        return [keys.find(None, key) is not None for key in (b"pr-day", b"pr-moment")]

    assert list_valid(9, 59) == [True, True]
    assert list_valid(10, 0) == [True, False]
    assert list_valid(23, 59) == [True, False]
    clock.now += 60
    assert keys.find(None, b"pr-day") is None


def test_a_key_never_shows_its_hash() -> None:
    assert HASH not in repr(build_key("alice", SECRET))


def test_keys_name_targets_of_the_pool() -> None:
    keys = ClientKeys(
        [
            build_key("a", "1", targets=("big", "old")),
            build_key("b", "2", targets=("new",)),
            build_key("c", "3"),
        ]
    )
    keys.check_targets(["big", "old", "new"])
    with pytest.raises(ConfigError, match=r"(?s)'a' allows \['old'\].*'b' allows \['new'\]"):
        keys.check_targets(["big"])


def write_keys(path: Path, *rows: object) -> Path:
    path.write_text(yaml.safe_dump({"keys": list(rows)}))
    return path


def test_a_file_tells_all_that_is_wrong_and_quotes_nothing(tmp_path: Path) -> None:
    list_valid = {"name": "good", "sha256": HASH}
    path = write_keys(
        tmp_path / "keys.yaml",
        list_valid,
        list_valid,
        {"name": "has space", "sha256": SECRET},
        {"name": "c", "sha256": "ABC", "requests_per_minute": 0, "targets": []},
        {"name": "d", "sha256": "1" * 64, SECRET: 1, "dollars_per_day": -1, "admin": "yes"},
        {"name": "e", "sha256": "2" * 64, "expires": "2026-01-31T12:00:00"},
        SECRET,
    )
    with pytest.raises(ConfigError) as caught:
        read_keys(path)
    text = str(caught.value)
    assert SECRET not in text
    assert HASH not in text
    for place in (
        *("keys.1.name: is repeated", "keys.1.sha256: is repeated"),
        *("keys.2.name", "keys.2.sha256: Value error, is a key", "keys.3.sha256"),
        *("keys.3.requests_per_minute", "keys.3.targets", "keys.4.(another name)"),
        *("keys.4.dollars_per_day", "keys.4.admin", "keys.5.expires", "keys.6"),
    ):
        assert place in text, place


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "keys: 1", "keys: []\nother: 1", "key: []", f"keys: [{SECRET}"),
        *(f"keys: {SECRET}: {SECRET}: x", "\x00"),
    ],
)
def test_what_is_no_file_of_keys_is_told_and_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"keys\.yaml: (line 1: )?not") as caught:
        read_keys(path)
    assert SECRET not in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_keys(tmp_path / "keys.yaml")


def test_dates_are_read_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    row = f"keys:\n- name: a\n  sha256: {HASH}\n  created: 2026-01-01\n  expires: 2026-01-31\n"
    path.write_text(row)
    (key,) = read_keys(path)
    assert key.expires == datetime(2026, 2, 1, tzinfo=UTC)
    path.write_text(row.replace("2026-01-31", "2026-01-31T10:00:00Z"))
    (key,) = read_keys(path)
    assert key.expires == datetime(2026, 1, 31, 10, tzinfo=UTC)


def test_keys_are_random_and_long() -> None:
    secrets = {new_key() for _ in range(50)}
    assert len(secrets) == 50
    assert all(key.startswith("pr-") and len(key) == 46 for key in secrets)


def test_keys_that_are_added_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: add_key(path, build_key(f"k{n}", f"pr-{n}")), range(8)))
    assert sorted(key.name for key in read_keys(path)) == [f"k{n}" for n in range(8)]


def test_the_command_makes_lists_and_revokes(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    options = ("--file", path, "--dollars-per-day", 5, "--requests-per-minute", 60)
    output = run_ok("key", "new", "alice", *options, "--target", "big", "--expires", "2099-01-31")
    key = output.strip()
    assert output == f"{key}\n"
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    entry = read_keys(path).find(f"Bearer {key}".encode(), None)
    assert entry is not None
    assert (entry.name, entry.dollars_per_day, entry.targets) == ("alice", 5, ("big",))
    assert entry.expires == datetime(2099, 2, 1, tzinfo=UTC)
    admin = run_ok("key", "new", "root", "--file", path, "--admin", "--no-learning").strip()
    assert [key.learning for key in read_keys(path)] == [True, False]
    table = run_ok("key", "list", "--file", path)
    assert "alice" in table
    assert "60 requests a minute; $5 a day" in table
    assert table.count("not learned from") == 1
    assert entry.sha256 not in table
    rows = json.loads(run_ok("key", "list", "--file", path, "--json"))
    assert [(row["name"], row["admin"]) for row in rows] == [("alice", False), ("root", True)]
    run_ok("key", "revoke", "alice", "--file", path)
    remaining = read_keys(path)
    assert remaining.find(None, key.encode()) is None
    assert remaining.find(None, admin.encode()) is not None


def test_the_command_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    run_ok("key", "new", "alice", "--file", path)
    before = path.read_bytes()
    check_refused("has a key named 'alice'", "key", "new", "alice", "--file", path)
    check_malformed("name: .*pattern", "key", "new", "a b", "--file", path)
    check_malformed("expires", "key", "new", "bob", "--file", path, "--expires", "soon")
    for option in ("--concurrent", "--requests-per-minute", "--dollars-per-day"):
        check_malformed(f"{option} is 0", "key", "new", "bob", "--file", path, option, 0)
    check_refused("no key named 'bob'; it has alice", "key", "revoke", "bob", "--file", path)
    check_refused("no such file", "key", "list", "--file", tmp_path / "other.yaml")
    assert path.read_bytes() == before


def try_to_enter(limits: KeyLimits, key: ClientKey) -> str | int:
    """0 if the request may enter; else the error's code and the seconds to wait."""
    try:
        limits.enter(key)
    except RefusalError as error:
        return f"{error.code} {error.headers['retry-after']}"
    return 0


def test_a_minute_is_a_bucket_that_fills_evenly() -> None:
    clock = Clock(1000.0)
    limits = KeyLimits(clock=clock)
    key = build_key("a", "1", requests_per_minute=3)
    assert [try_to_enter(limits, key) for _ in range(4)] == [0, 0, 0, "rate_limit_exceeded 20"]
    clock.now += 19
    assert try_to_enter(limits, key) == "rate_limit_exceeded 1"
    clock.now += 1
    assert [try_to_enter(limits, key) for _ in range(2)] == [0, "rate_limit_exceeded 20"]
    clock.now += 3600
    assert [try_to_enter(limits, key) for _ in range(4)] == [0, 0, 0, "rate_limit_exceeded 20"]
    assert try_to_enter(limits, build_key("b", "2", requests_per_minute=1)) == 0


def test_requests_at_once_are_counted_until_they_end() -> None:
    limits = KeyLimits(clock=Clock())
    key = build_key("a", "1", concurrent=2)
    assert [try_to_enter(limits, key) for _ in range(3)] == [0, 0, "concurrency_limit_exceeded 1"]
    limits.leave(key)
    assert [try_to_enter(limits, key) for _ in range(2)] == [0, "concurrency_limit_exceeded 1"]
    free = build_key("a", "1")  # the same key, read again without a limit
    assert try_to_enter(limits, free) == 0
    assert try_to_enter(limits, key) == "concurrency_limit_exceeded 1"


def test_a_refused_request_takes_nothing_from_the_minute() -> None:
    limits = KeyLimits(clock=Clock())
    key = build_key("a", "1", concurrent=1, requests_per_minute=2)
    assert [try_to_enter(limits, key) for _ in range(3)] == [
        0,
        *["concurrency_limit_exceeded 1"] * 2,
    ]
    limits.leave(key)
    assert try_to_enter(limits, key) == 0


def test_the_gateway_takes_on_so_many() -> None:
    slots = RequestSlots(1)
    slots.enter()
    with pytest.raises(RefusalError) as caught:
        slots.enter()
    assert (caught.value.status, caught.value.headers["retry-after"]) == (503, "1")
    slots.leave()
    slots.enter()
    assert slots.under_way == 1


def test_what_keys_may_spend_becomes_budgets() -> None:
    keys = [build_key("a", "1", dollars_per_day=5.0, dollars_per_hour=1.0), build_key("b", "2")]
    assert key_budgets(keys) == (
        BudgetSettings(dollars=1.0, per="hour", key="a", stop=True),
        BudgetSettings(dollars=5.0, per="day", key="a", stop=True),
    )
