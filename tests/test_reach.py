"""Commands, files and streams on a machine: here, and over a real sshd on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv41 import host, zipped
from dsv41.errors import CheckFailed, EngineFailed, Error, Unreachable
from dsv41.host.reach import LOCAL, Done, Host, clean, each
from sshd import Server, keygen, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("sshd")) as found:
        yield found


@pytest.fixture
def over(server: Server) -> Iterator[Host]:
    made = Host(name="spark1", destination=server.destination, options=server.options)
    yield made
    made.close()


@pytest.fixture(params=["here", "ssh"])
def machine(request: pytest.FixtureRequest) -> Host:
    if request.param == "here":
        return Host(name="spark0", destination=LOCAL)
    found: Host = request.getfixturevalue("over")
    return found


def test_words_arrive_as_they_were_given(machine: Host) -> None:
    words = ["a b", "$HOME", "'", "*", "", "é"]
    done = machine.run(["printf", "%s|", *words])
    assert done == Done(status=0, stdout="a b|$HOME|'|*||é|", stderr="")
    assert machine.run(["sh", "-c", "echo no >&2; exit 7"]).status == 7
    assert machine.run(["cat"], stdin=b"some bytes").stdout == "some bytes"


def test_ask_names_the_machine_the_command_and_the_reason(machine: Host) -> None:
    assert machine.ask(["echo", "yes"]) == "yes\n"
    with pytest.raises(CheckFailed, match="D412") as caught:
        machine.ask(["sh", "-c", "echo 'no such thing' >&2; exit 3"])
    assert machine.name in caught.value.says
    assert "ended with 3: no such thing" in caught.value.says


def test_a_command_whose_time_is_over_is_ended_over_there(machine: Host, tmp_path: Path) -> None:
    marker, began = tmp_path / "pid", time.monotonic()
    with pytest.raises(EngineFailed, match="D411") as caught:
        machine.run(["sh", "-c", f"echo $$ > {marker}; exec sleep 60"], seconds=0.5)
    assert time.monotonic() - began < 5
    assert machine.name in caught.value.says
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_a_file_is_put_whole_with_its_mode(machine: Host, tmp_path: Path) -> None:
    target, source = tmp_path / "new folder" / "key", tmp_path / "source"
    machine.put(b"one", str(target), mode=0o600)
    assert target.read_bytes() == b"one"
    assert target.stat().st_mode & 0o777 == 0o600
    source.write_bytes(os.urandom(3_000_000))
    machine.put(source, str(target))
    assert target.read_bytes() == source.read_bytes()
    assert [p.name for p in target.parent.iterdir()] == ["key"]


def test_what_cannot_be_written_leaves_the_old_file(machine: Host, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("THIS TEST MOUNTS A SMALL FILE SYSTEM: run it as root")
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    try:
        machine.put(b"old", str(folder / "file"))
        with pytest.raises(CheckFailed, match="could not be written") as caught:
            machine.put(bytes(200_000), str(folder / "file"))
        assert machine.name in caught.value.says
        assert (folder / "file").read_bytes() == b"old"
        assert [p.name for p in folder.iterdir()] == ["file"]
    finally:
        subprocess.run(["umount", folder], check=True)


def test_lines_are_followed_as_they_come_and_clean(machine: Host) -> None:
    said = "printf 'one\\033[31m red\\033[0m\\n 10%%\\r 20%%\\n'; printf 'a\\007b\\n'; sleep 60"
    lines = machine.follow(["sh", "-c", said])
    began = time.monotonic()
    assert [next(lines) for _ in range(3)] == ["one red", " 20%", "ab"]
    lines.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 10


def test_a_followed_command_ends_with_its_reader(machine: Host) -> None:
    lines = machine.follow(["sh", "-c", "echo $$; exec sleep 60"])
    pid = int(next(lines))
    lines.close()  # type: ignore[attr-defined]
    assert host.wait_until(lambda: not Path(f"/proc/{pid}").exists(), seconds=5)
    assert list(machine.follow(["sh", "-c", "echo last; exit 3"])) == ["last"]


def test_a_line_without_an_end_comes_in_pieces(machine: Host) -> None:
    lines = machine.follow(["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; sleep 60"])
    assert next(lines) == "x" * 4096
    lines.close()  # type: ignore[attr-defined]


def test_a_link_that_is_cut_is_unreachable(over: Host) -> None:
    over.run(["true"])
    cut = "kill $(ps -o ppid= -p $PPID); sleep 30"
    began = time.monotonic()
    with pytest.raises(Unreachable, match="spark1"):
        over.run(["sh", "-c", cut])
    assert time.monotonic() - began < 10
    assert over.ask(["echo", "again"]) == "again\n"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain\n", "plain"),
        ("\x1b]0;title\x07text", "text"),
        ("tab\tstays", "tab\tstays"),
        ("x" * 9000, "x" * 4096),
        ("\x1b[2K\x1b[1Gdone", "done"),
    ],
)
def test_clean(line: str, shown: str) -> None:
    assert clean(line) == shown


def test_one_connection_serves_all_commands(over: Host) -> None:
    over.run(["true"])
    socket = f"{over._folder}/s"
    assert Path(socket).is_socket()
    began = time.monotonic()
    for _ in range(5):
        assert over.run(["true"]).status == 0
    assert time.monotonic() - began < 5
    over.close()
    assert not Path(socket).exists()
    assert over.run(["true"]).status == 0  # a closed one connects again


def test_a_changed_host_key_and_a_refused_key_are_unreachable(
    server: Server, tmp_path: Path
) -> None:
    other = keygen(tmp_path / "other")
    public = Path(f"{other}.pub").read_text().split()
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {public[0]} {public[1]}\n")
    changed = (f"UserKnownHostsFile={known}",)
    for extra, words in ((changed, "Host key"), (("IdentityAgent=none",), "denied")):
        options = [*("-o", extra[0]), *server.options]
        if words == "denied":
            options[options.index("-i") + 1] = str(other)
        made = Host(name="spark9", destination=server.destination, options=tuple(options))
        with pytest.raises(Unreachable, match="spark9") as caught:
            made.run(["true"])
        assert caught.value.exit_status == 3
        assert words in caught.value.says
        made.close()


def test_a_command_may_itself_end_with_255(over: Host) -> None:
    assert over.run(["sh", "-c", "exit 255"]).status == 255


def test_each_gives_results_and_errors_by_name(over: Host) -> None:
    nobody = Host(name="spark8", destination="127.0.0.1", options=("-p", "1"))
    found = each([over, nobody], lambda host: host.ask(["echo", host.name]))
    assert list(found) == ["spark1", "spark8"]
    assert found["spark1"] == "spark1\n"
    assert isinstance(found["spark8"], Error)
    nobody.close()


def test_sudo_that_refuses_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a program of that name, as a machine whose sudo wants a password has
    script = tmp_path / "sudo"
    script.write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(CheckFailed, match="a password is required") as caught:
        Host(name="spark1", destination=LOCAL, sudo=True).run(["true"], sudo=True)
    assert caught.value.code == "D413"
    warned = "sudo: unable to resolve host spark1: Name or service not known"
    script.write_text(f"#!/bin/sh\necho '{warned}' >&2\nshift 2\nexec \"$@\"\n")
    failed = Host(name="spark1", destination=LOCAL, sudo=True).run(["false"], sudo=True)
    assert (failed.status, failed.last_word) == (1, warned)
    assert Host(name="spark1", destination=LOCAL).run(["true"], sudo=True).status == 0


def test_the_program_of_the_nodes_needs_nothing_but_python(
    over: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # with the digests that the installed command has
    archive = zipped.program()
    assert archive == zipped.program()
    path = tmp_path / zipped.name_of(archive)
    over.put(archive, str(path))
    alone = ["env", "-i", sys.executable, "-I", "-S", str(path)]
    assert over.ask([*alone, "--version"]).startswith("dsv41 ")
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(over.ask([*alone, "plan", "--example", "tp3"]))
    here = Path(sys.executable).with_name("dsv41")
    plan = ["plan", "--profile", "tp3", "--fleet", str(fleet), "--json"]
    assert over.ask([*alone, *plan]) == over.ask([str(here), *plan])
    assert "--plan" in over.ask([*alone, "rank", "exec", "--help"])
    done = over.run([*alone, "rank", "exec", "--plan", "/nowhere", "--rank", "0"])
    assert done.status == 2
    assert "D062" in done.stderr
