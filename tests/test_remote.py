"""Commands over a real sshd on loopback, with keys that live as long as the test."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv41 import host, remote
from dsv41.errors import Unreachable
from sshd import Server, keygen, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("sshd")) as found:
        yield found


def test_a_command_gives_its_status_and_both_streams(server: Server) -> None:
    command = 'echo "it\'s $((1+1))"; echo bad >&2; exit 7'
    for destination, options in ((server.destination, server.options), (remote.LOCAL, ())):
        assert remote.run(destination, command, options=options) == (7, "it's 2\n", "bad\n")


def test_a_command_may_end_with_255_itself(server: Server) -> None:
    assert remote.run(server.destination, "exit 255", options=server.options)[0] == 255


def test_bytes_that_are_no_text_are_kept_as_marks(server: Server) -> None:
    status, out, _ = remote.run(server.destination, "printf 'a\\377b'", options=server.options)
    assert (status, out) == (0, "a\ufffdb")


def test_a_command_has_its_time(server: Server) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        remote.run(server.destination, "sleep 30", seconds=1, options=server.options)
    assert time.monotonic() - began < 10


def test_a_host_that_does_not_answer_refuses_or_changed_is_unreachable(
    server: Server, tmp_path: Path
) -> None:
    free = str(host.free_port("127.0.0.1", server.port + 1))
    stranger = keygen(tmp_path / "stranger")
    public = Path(f"{stranger}.pub").read_text().split()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{server.port} {public[0]} {public[1]}\n")
    wrong = {
        "refused": ("-p", free),
        "Permission denied": ("-i", str(stranger)),
        "verification failed": ("-o", f"UserKnownHostsFile={tmp_path}/known"),
    }
    for words, options in wrong.items():
        # ssh takes the first value that it reads; -i adds up, so our own key is left out
        rest = [o for o in server.options if o not in ("-i", str(server.folder / "user"))]
        kept = rest if options[0] == "-i" else server.options
        with pytest.raises(Unreachable) as caught:
            remote.run(server.destination, "true", options=[*options, *kept])
        assert words in caught.value.says
        assert server.destination in caught.value.fix
