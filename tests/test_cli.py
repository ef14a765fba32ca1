"""The command's manners: streams, JSON, exit statuses, effect classes."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsv41.cli import main
from dsv41.cli.talk import Talk
from dsv41.errors import Unsafe


def document(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert main([*arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_plan_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    plan = document(capsys, "plan", "--profile", "local", "--tp", "1", "--port", "9000")
    assert (plan["schema"], plan["url"]) == ("dsv41.plan/1", "http://127.0.0.1:9000/v1")
    assert [rank["rank"] for rank in plan["ranks"]] == [0]


def test_plan_in_words_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--why"]) == 0
    out = capsys.readouterr().out
    assert "step rank-1 on local1 [changes hosts]: dsv41 rank exec --plan" in out
    assert "714,106 tokens" in out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "--profile", "tp33"], "D093"),
        (["plan", "--tp", "9"], "D095"),
        (["plan", "--port", "70000"], "D003"),
        (["frobnicate"], "D001"),
        (["plan", "--frobnicate"], "D001"),
        (["plan", "--prof", "local"], "D001"),
        (["logs", "--lines", "x"], "D001"),
        (["logs", "--lines", "0"], "D001"),
        (["logs", "--lines", "-3"], "D001"),
        (["pack", "--profile", "tp3"], "D002"),
        (["serve", "--profile", "tp4"], "D002"),
        (["stop", "--profile", "tp3"], "D002"),
        (["status", "--profile", "tp3"], "D002"),
        (["logs", "--profile", "tp3"], "D002"),
        (["stop", "--profile", "tp33"], "D093"),
        (["explain", "D999"], "D005"),
        (["status", "--state-dir", "/nonexistent"], "D062"),
        (["logs", "--state-dir", "/nonexistent"], "D062"),
        (["rank", "exec", "--plan", "/nonexistent", "--rank", "0"], "D062"),
        (["smoke", "--url", "nowhere"], "D110"),
    ],
)
def test_usage_errors(arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(code)
    assert f"more: dsv41 explain {code}" in err


def test_an_error_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    error = document(capsys, "explain", "D999", status=2)
    assert (error["schema"], error["code"], error["fix"]) == (
        "dsv41.error/1",
        "D005",
        "dsv41 explain all",
    )


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "d063"]) == 0
    assert "a lock is never stale" in capsys.readouterr().out
    assert len(document(capsys, "explain", "all")["codes"]) > 20


def test_stop_with_nothing_to_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "stop", "--state-dir", str(tmp_path))["status"] == "nothing runs"


def test_every_verb_tells_its_effect(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ["serve", "plan", "stop", "status", "logs", "smoke", "pack", "explain"]:
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        out = " ".join(capsys.readouterr().out.split())
        effects = ("[offline]", "[reads hosts]", "[changes hosts]", "[stops serving]")
        assert any(effect in out for effect in effects), verb


def test_a_dry_run_prints_steps_and_does_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--dry-run", "--state-dir", str(tmp_path / "s")]) == 0
    assert "step pack on local0" in capsys.readouterr().out
    assert not (tmp_path / "s").exists()


def test_color_is_asked_for_by_a_terminal_alone() -> None:
    words = io.StringIO()
    talk = Talk(data=io.StringIO(), words=words, as_json=False, color=True)
    talk.error(Unsafe("D061", "taken."))
    assert words.getvalue().startswith("\x1b[1;31mD061\x1b[0m taken.")
    plain = subprocess.run(
        [sys.executable, "-m", "dsv41", "frobnicate"], capture_output=True, text=True, check=False
    )
    assert plain.returncode == 2
    assert "\x1b" not in plain.stderr


def test_log_lines_lose_their_control_codes() -> None:
    words = io.StringIO()
    Talk(data=io.StringIO(), words=words, as_json=False, color=True).log(
        "a\x1b[31mb\x07c\x1b]0;t\n"
    )
    assert words.getvalue() == "abc]0;t\n"


def test_alone_it_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 0
    assert "dsv41 serve --profile local" in capsys.readouterr().out


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m dsv41 explain all | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_that_nobody_reads_keeps_its_status_and_its_words() -> None:
    asked = f"{sys.executable} -m dsv41 explain D999 --json"
    # the pipe's other end is closed before the command begins
    closed = "exec 3> >(:); wait $!; "
    for command, words in ((f"{asked} >&3", "D005 "), (f"{asked} >&3 2>&3", "")):
        done = subprocess.run(
            ["bash", "-c", closed + command], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(words)
        assert "Traceback" not in done.stderr
        assert "BrokenPipeError" not in done.stderr


def test_rank_exec_starts_without_torch_and_numpy() -> None:
    """`rank exec` stays beside every rank: it must be small and quick to start."""
    code = (
        "import sys; from dsv41.cli import main\n"
        "main(['rank', 'exec', '--plan', '/none', '--rank', '0'])\n"
        "print({'torch', 'numpy', 'rich', 'dsv41_rows'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout == "set()\n"


def read_all(leader: int) -> str:
    """Everything that was written to a terminal whose other end is closed."""
    shown = b""
    with contextlib.suppress(OSError):  # EIO is how a terminal says that it is over
        while part := os.read(leader, 4096):
            shown += part
    os.close(leader)
    return shown.decode()


def test_waiting_is_a_line_without_a_terminal_and_a_spinner_on_one() -> None:
    plain = io.StringIO()
    with Talk(data=plain, words=plain, as_json=False, color=False).waiting("starting"):
        pass
    assert plain.getvalue() == "starting\n"
    leader, follower = os.openpty()
    words = os.fdopen(follower, "w")
    with words, Talk(data=words, words=words, as_json=False, color=False).waiting("starting"):
        pass
    shown = read_all(leader)
    assert "starting" in shown
    assert "0:00:00" in shown
