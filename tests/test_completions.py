"""Shell completions: a Tab in bash, zsh and fish offers what the parser takes."""

import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsv41 import profile
from dsv41.cli.parser import build

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "completions.py"

# what stands before the Tab -> what must be offered, what must not
CASES = [
    ("dsv41 pl", {"plan"}, {"pack"}),
    ("dsv41 ", {"plan", "serve", "rows", "pins"}, {"verify", "--fleet"}),
    ("dsv41 rows ver", {"verify"}, {"inspect"}),
    ("dsv41 plan --dr", {"--draw"}, {"--diff"}),
    ("dsv41 plan --draw ", {"memory", "map", "cables"}, {"plan"}),
    ("dsv41 plan --example tp4-", {"tp4-ring", "tp4-cycle"}, {"tp3"}),
    ("dsv41 plan --fleet fl", {"fleet.toml"}, {"notes.txt"}),
    ("dsv41 plan --fleet fleet.toml --for", {"--format"}, {"--fleet"}),
    ("dsv41 serve --profile tp", set(profile.names()) - {"local"}, {"local"}),
    ("dsv41 pins verify --m", {"--mirror"}, {"--root"}),
    ("dsv41 diagnose no", {"notes.txt"}, {"fleet.toml"}),
    ("dsv41 serve --port ", set(), {"serve", "--port", "notes.txt"}),
]


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True, env=environment)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fleet.toml").touch()
    (tmp_path / "notes.txt").touch()
    return tmp_path


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


def offered(command: list[str], folder: Path) -> set[str]:
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    return set(done.stdout.splitlines())


@pytest.mark.parametrize(("line", "wanted", "unwanted"), CASES)
def test_bash_offers(
    share: Path, folder: Path, line: str, wanted: set[str], unwanted: set[str]
) -> None:
    file = share / "bash-completion/completions/dsv41"
    words = line.split(" ")
    code = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dsv41; '
        '[ ${#COMPREPLY[@]} = 0 ] || printf "%s\\n" "${COMPREPLY[@]}"'
    )
    found = offered(["bash", "--norc", "-c", code, "bash", str(file), *words], folder)
    assert wanted <= found
    assert not unwanted & found


@needs("fish")
@pytest.mark.parametrize(("line", "wanted", "unwanted"), CASES)
def test_fish_offers(
    share: Path, folder: Path, line: str, wanted: set[str], unwanted: set[str]
) -> None:
    file = share / "fish/vendor_completions.d/dsv41.fish"
    code = f"source {file}; complete -C '{line}'"
    found = {text.split("\t")[0] for text in offered(["fish", "--no-config", "-c", code], folder)}
    assert wanted <= found
    assert not unwanted & found


@needs("zsh")
@pytest.mark.parametrize(("line", "wanted", "unwanted"), CASES)
def test_zsh_offers(
    share: Path, folder: Path, line: str, wanted: set[str], unwanted: set[str]
) -> None:
    """The function as zsh calls it, with zsh's own three functions for what it adds."""
    file = share / "zsh/site-functions/_dsv41"
    code = (
        'compadd() { shift; print -l -- "$@" }; _files() { print -l -- * }; '
        "_describe() { local word; for word in ${(P)2}; print -- ${word%%:*} }; "
        'file=$1; shift; words=("$@"); CURRENT=$#; _dsv41() { source $file }; _dsv41'
    )
    command = ["zsh", "--no-rcs", "-c", code, "zsh", str(file), *line.split(" ")]
    typed = line.rsplit(" ", maxsplit=1)[-1]
    found = {text for text in offered(command, folder) if text.startswith(typed)}
    assert wanted <= found
    # flags are offered before the first dash, too
    assert not {text for text in unwanted & found if not text.startswith("-")}


def test_a_tab_completes_in_an_interactive_bash(share: Path, folder: Path) -> None:
    file = share / "bash-completion/completions/dsv41"
    terminal, inside = pty.openpty()
    with subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        cwd=folder,
        start_new_session=True,
        stdin=inside,
        stdout=inside,
        stderr=inside,
    ) as process:
        os.close(inside)
        os.write(terminal, f"dsv41() {{ echo called: $*.; }}; source {file}\n".encode())
        os.write(terminal, b"dsv41 pla\t--dra\tmem\t\n")
        said, end = b"", time.monotonic() + 20
        while b"called: plan --draw memory." not in said and time.monotonic() < end:
            said += os.read(terminal, 4096)
        os.write(terminal, b"exit\n")
        process.wait(20)
    os.close(terminal)
    assert b"called: plan --draw memory." in said


def test_no_flag_is_forgotten_and_no_path_of_the_builder_stays(share: Path) -> None:
    for file in share.rglob("*dsv41*"):
        text = file.read_text()
        assert str(Path.home()) not in text
        assert "--reserve-gib" in text.replace("-l ", "--")
        for verb in ("doctor", "smoke", "stop", "cache", "explain"):
            assert f"dsv41 {verb}" in text
    assert build().prog == "dsv41"
