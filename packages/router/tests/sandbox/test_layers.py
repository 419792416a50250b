"""Where one layer is taken away the others hold, and the sandbox refuses to open."""

import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from packages.router.tests.programs import run_program
from packages.router.tests.sandbox.inmates import find_processes, name_program, new_name
from packages.router.tests.sandbox.runners import QUICK, OtherUserRunner
from prefill_router.errors import SandboxError
from prefill_router.sandbox import (
    Sandbox,
    sandbox as sandbox_module,
    sandbox_process,
)
from prefill_router.sandbox.sandbox import check_holds

pytestmark = pytest.mark.slow

ALLOW_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="of the form for root")


@pytest.fixture
def sandbox_without_filter(sandbox: Sandbox) -> Sandbox:
    return replace(sandbox, _filter=ALLOW_ALL, limits=QUICK)


FORKS = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(100)
        made += 1
except OSError:
    print(made, flush=True)
"""


def test_processes_are_counted(sandbox_without_filter: Sandbox) -> None:
    name = new_name()
    outcome = sandbox_without_filter.run(name_program(name, FORKS))
    assert find_processes(name) == []
    assert outcome.status == "ok"
    assert 4 <= int(outcome.stdout) < QUICK.threads


DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        for stream in (0, 1, 2): os.close(stream)
        time.sleep(1000)
    os._exit(0)
time.sleep(0.2)
print("done")
"""


def test_a_daemon_doesnt_outlive_its_maker(sandbox_without_filter: Sandbox) -> None:
    name = new_name()
    outcome = sandbox_without_filter.run(name_program(name, DAEMON))
    assert find_processes(name) == []
    assert (outcome.status, outcome.stdout) == ("ok", b"done\n")


def test_without_the_filter_the_trial_fails(sandbox_without_filter: Sandbox) -> None:
    with pytest.raises(SandboxError, match=r"isn't safe on this machine.*makes a process"):
        check_holds(sandbox_without_filter.run, limits=sandbox_without_filter.limits)


@as_root
@pytest.mark.parametrize(
    ("left_out", "reason"),
    [("--unshare-net", "connects to a socket outside"), ("--unshare-pid", "sees other processes")],
)
def test_without_a_namespace_the_trial_fails(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, left_out: str, reason: str
) -> None:
    namespaces = tuple(part for part in sandbox_process._NAMESPACES_AS_ROOT if part != left_out)
    monkeypatch.setattr(sandbox_process, "_NAMESPACES_AS_ROOT", namespaces)
    with pytest.raises(SandboxError, match=f"isn't safe on this machine.*{reason}"):
        check_holds(sandbox.run, limits=sandbox.limits)


def test_with_a_window_the_trial_fails(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    options = (*sandbox_process._SYSTEM, "--bind", str(tmp_path), "/mnt")
    monkeypatch.setattr(sandbox_process, "_SYSTEM", options)
    with pytest.raises(SandboxError, match="writes where it may not"):
        check_holds(sandbox.run, limits=sandbox.limits)


@as_root
def test_without_limits_the_trial_fails(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sandbox._tools.prlimit
    monkeypatch.setattr(sandbox_process, "prlimit", lambda *_: (path, "--core=0", "--"))
    with pytest.raises(SandboxError, match="has no limit on processes, has no limit on memory"):
        check_holds(sandbox.run, limits=sandbox.limits)


OPENS = """
from prefill_router.sandbox import Sandbox
Sandbox.open().run("print('harm')")
"""


def open_with(*wrapper: str) -> str:
    """The last line of an attempt to open a sandbox and run a program, with less rights."""
    process = subprocess.run(
        [*wrapper, sys.executable, "-c", OPENS], capture_output=True, text=True, check=False
    )
    assert process.returncode != 0
    assert not process.stdout
    return process.stderr.strip().splitlines()[-1]


def test_root_without_its_rights_runs_nothing(sandbox: Sandbox) -> None:
    del sandbox
    if os.geteuid() != 0:
        pytest.skip("of the form for root")
    for right, words in (("sys_admin", "bwrap: Creating new namespace"), ("setuid", "setresuid")):
        last = open_with("setpriv", f"--bounding-set=-{right}", "--inh-caps=-all")
        assert "SandboxError: the sandbox couldn't be started" in last, last
        assert words in last
        assert "apt-get install bubblewrap" in last


REFUSES = (
    "echo 0 >/proc/sys/user/max_user_namespaces || exit 1;"
    'exec setpriv --ambient-caps=-all --inh-caps=-all "$@"'
)
"""In a user namespace of its own, so that the setting is for what runs in it alone."""


def test_an_ordinary_user_without_namespaces_runs_nothing(ordinary: OtherUserRunner) -> None:
    wrapper = ("unshare", "--user", "--keep-caps", "sh", "-c", REFUSES, "sh")
    if subprocess.run([*wrapper, "true"], check=False).returncode != 0:
        pytest.skip("namespaces can't be refused to one process here")
    last = ordinary.run_bare(*wrapper, program=OPENS)
    assert "SandboxError: the sandbox couldn't be started: bwrap: " in last, last
    assert "allow them, or grade as root" in last


@pytest.fixture
def folder_of_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sandbox_process, "_SYSTEM_PATH", str(tmp_path))
    return tmp_path


def write_tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("missing", ["bwrap", "setpriv", "prlimit"])
def test_a_missing_tool_is_named(folder_of_tools: Path, missing: str) -> None:
    for name in {"bwrap", "setpriv", "prlimit"} - {missing}:
        write_tool(folder_of_tools, name, "echo bubblewrap 0.8.0")
    with pytest.raises(SandboxError, match=rf"needs {missing}; .*apt-get install bubblewrap"):
        Sandbox.open()


def test_an_old_bubblewrap_is_refused(folder_of_tools: Path) -> None:
    for name in ("bwrap", "setpriv", "prlimit"):
        write_tool(folder_of_tools, name, "echo bubblewrap 0.4.1")
    with pytest.raises(SandboxError, match=r"is bubblewrap 0\.4\.1; .* 0\.8 or newer"):
        Sandbox.open()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "No permissions to"),
        ("exit 1", "it ended without a word"),
        ("echo something else; sleep 1", "it ended without a word|didn't name its child"),
    ],
)
def test_a_bubblewrap_that_fails_runs_nothing(
    folder_of_tools: Path, script: str, reason: str
) -> None:
    write_tool(
        folder_of_tools, "bwrap", f"[ $1 = --version ] && echo bubblewrap 0.8 && exit\n{script}"
    )
    for name in ("setpriv", "prlimit"):
        write_tool(folder_of_tools, name, 'while [ $1 != -- ]; do shift; done; shift; exec "$@"')
    with pytest.raises(SandboxError, match=reason) as raised:
        Sandbox.open()
    assert "apt-get install bubblewrap" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_interpreter_that_is_none_is_refused() -> None:
    with pytest.raises(SandboxError, match="isn't a Python interpreter"):
        sandbox_process.find_tools(python=Path("/usr/bin/true"))
    with pytest.raises(SandboxError, match="isn't a Python interpreter"):
        sandbox_process.find_tools(python=Path("/nowhere/python3"))


def test_an_old_interpreter_is_refused(tmp_path: Path) -> None:
    write_tool(tmp_path, "python3", "echo /usr; echo 3; echo 9")
    with pytest.raises(SandboxError, match=r"is Python 3\.9; the sandbox needs 3\.11"):
        sandbox_process.find_tools(python=tmp_path / "python3")


def test_other_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module.platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxError, match="no filter of system calls for riscv64"):
        Sandbox.open()


def test_the_interpreter_can_be_chosen(sandbox: Sandbox) -> None:
    del sandbox
    chosen = Sandbox.open(python=Path(sys.executable), limits=QUICK)
    program = "import sys; print(sys.version_info[:2])"
    assert chosen.run(program).stdout.decode() == f"{sys.version_info[:2]}\n"


def test_each_run_has_a_user_id_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "UIDS", 2)
    with sandbox_module.lease_uid() as first, sandbox_module.lease_uid() as second:
        assert {first, second} == {sandbox_module.FIRST_UID, sandbox_module.FIRST_UID + 1}
        with pytest.raises(SandboxError, match="all 2 user ids"), sandbox_module.lease_uid():
            pass
    with sandbox_module.lease_uid() as again:
        assert again in {first, second}


HOLDS = """
import sys
from prefill_router.sandbox import sandbox as uids
uids.UIDS = 1
with uids.lease_uid():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_has_other_user_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "UIDS", 1)
    child = [sys.executable, "-c", HOLDS]
    with run_program(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(SandboxError, match="all 1 user ids"), sandbox_module.lease_uid():
            pass
        process.kill()
    with sandbox_module.lease_uid() as uid:
        assert uid == sandbox_module.FIRST_UID
