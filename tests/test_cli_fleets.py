"""`dsv41 serve --fleet`: steps and refusals before any machine is touched; `connect`."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dsv41.cli import build, main, planning
from dsv41.errors import Unsafe


@pytest.fixture
def fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["plan", "--example", "tp3"]) == 0
    path = tmp_path / "fleet.toml"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.parametrize("profile", ["tp3", "local"])
def test_the_steps_of_a_fleet(
    fleet: Path, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--profile", profile, "--fleet", str(fleet)]
    assert main(["serve", *command, "--dry-run"]) == 0
    steps = capsys.readouterr().out.splitlines()
    assert main(["plan", *command, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [line.split()[1] for line in steps] == [step["id"] for step in planned["steps"]]
    assert main(["serve", *command, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == planned["digest"]


def test_an_image_without_a_digest_is_refused(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--profile", "tp3", "--fleet", str(fleet), "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["code"] == "D180"


@pytest.mark.parametrize("words", [["--accept", "D253"], ["--image", "x"], ["--skip-smoke"]])
def test_what_only_a_fleet_has(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words, "--json"]) == 2
    refused = json.loads(capsys.readouterr().out)
    assert (refused["code"], words[0] in refused["says"]) == ("D107", True)


@pytest.mark.parametrize("command", ["serve", "stop", "pack", "plan"])
def test_without_a_fleet_file_the_fix_names_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a profile of one's own as well, by the file that it was given as."""
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "mine"\nextends = "tp3"\nsays = "mine"\n')
    assert main([command, "--profile", str(mine), "--json"]) == 2
    refused = json.loads(capsys.readouterr().out)
    assert refused["code"] == "D002"
    whole = {"stop": "stop", "plan": f"plan --example {mine}"}
    wanted = whole.get(command, f"{command} --profile {mine}")
    assert refused["fix"].startswith(f"dsv41 {wanted} ")
    assert "--fleet fleet.toml" in refused["fix"]


@pytest.mark.parametrize("command", ["serve", "plan", "pack"])
def test_a_fleet_needs_a_profile(
    fleet: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else Sparks would serve the tiny model without a word."""
    dry = [] if command == "plan" else ["--dry-run"]
    assert main([command, "--fleet", str(fleet), *dry, "--json"]) == 2
    refused = json.loads(capsys.readouterr().out)
    assert refused["code"] == "D107"
    assert refused["fix"].startswith(f"dsv41 {command} --profile tp3 --fleet {fleet}")


@pytest.mark.parametrize("command", ["serve", "pack", "stop", "status", "logs"])
def test_the_state_folder_is_the_fleet_files(
    fleet: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, "--profile", "tp3", "--fleet", str(fleet), "--state-dir", "/x", "--json"]
    assert main(words) == 2
    refused = json.loads(capsys.readouterr().out)
    assert (refused["code"], "--state-dir" in refused["says"]) == ("D107", True)


def test_a_changed_knob_as_the_guide_has_it(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (Path(__file__).parent.parent / "docs/howto/operate.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    mine = tmp_path / "mine.toml"
    mine.write_text(text)
    at = ["--profile", str(mine), "--fleet", str(fleet)]
    assert main(["plan", *at, "--diff", "tp3"]) == 0
    assert "--chunked-prefill-size: 768 -> 512" in capsys.readouterr().out
    assert main(["serve", *at, "--dry-run"]) == 0


def test_what_only_plan_can_set_is_said_to_go_into_a_file(
    fleet: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ["--fleet", str(fleet), "--dry-run", "--json"]
    assert main(["serve", "--profile", "tp3", *at, "--set", "chunk=512"]) == 2
    refused = json.loads(capsys.readouterr().out)
    assert refused["code"] == "D001"
    assert refused["fix"].endswith("docs/howto/operate.md, Change a knob")

    def make(_args: object) -> None:
        raise Unsafe("D120", "Profile tp3 does not fit on spark1.", fix="give --set chunk=512")

    monkeypatch.setattr(planning, "make", make)
    assert main(["serve", "--profile", "tp3", *at]) == 5
    refused = json.loads(capsys.readouterr().out)
    assert refused["fix"].startswith("give --set chunk=512; ")
    assert refused["fix"].endswith("docs/howto/operate.md, Change a knob")


@pytest.mark.parametrize("code", ["D999", "D063", "x"])
def test_only_a_check_can_be_accepted(
    code: str, fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", "--profile", "tp3", "--fleet", str(fleet), "--dry-run", "--json"]
    assert main([*words, "--accept", "d217"]) == 0
    capsys.readouterr()
    assert main([*words, "--accept", code]) == 2
    refused = json.loads(capsys.readouterr().out)
    assert (refused["code"], code in refused["says"]) == ("D107", True)


def test_a_dry_build_looks_at_its_source_before_it_asks_a_node(
    fleet: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(build, "each")
    image = f"localhost/x@sha256:{'1' * 64}"
    words = ["--profile", "tp3", "--fleet", str(fleet), "--image", image, "--from", "/nope"]
    assert main(["build", *words, "--dry-run", "--json"]) == 1
    refused = json.loads(capsys.readouterr().out)
    assert (refused["code"], "/nope" in refused["says"]) == ("D415", True)


def test_the_help_has_no_default_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    out = capsys.readouterr().out
    assert "default None" not in out
    assert "(profile local)" not in out


def test_ready_text_for_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-secret\n")
    url = "http://127.0.0.1:1/v1"  # nobody listens there
    words = ["connect", "--url", url, "--api-key-file", str(keys), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["clients"]) == {"curl", "openai", "open-webui", "litellm", "prometheus"}
    assert all("127.0.0.1:1" in text for text in found["clients"].values())
    assert str(keys) in found["clients"]["openai"]
    assert "sk-secret" not in json.dumps(found)
    compile(found["clients"]["openai"], "client.py", "exec")
    assert main(["connect", "--json"]) == 2


@pytest.fixture
def server() -> Iterator[str]:
    """The root of an endpoint that has a model and a key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/v1/models" and self.headers["Authorization"] == "Bearer my-key"
            body = b'{"data": [{"id": "dsv41-fixture"}]}' if known else b'{"message": "no key"}'
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its signature
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{served.server_address[1]}"
    served.shutdown()
    served.server_close()
    thread.join()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.txt"
    path.touch(mode=0o600)
    path.write_text("my-key\n")
    return path


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_text_for_a_server_has_its_path_and_its_model(
    end: str, server: str, key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed = ["--api-key-file", str(key_file)]
    assert main(["connect", "curl", "--url", server + end, *keyed]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"curl {server}/v1/chat/completions ")
    assert '"model": "dsv41-fixture"' in out
    assert main(["connect", "curl", "--url", server + end]) == 0
    out, err = capsys.readouterr()
    assert '"model": "deepseek-v4.1-flash"' in out
    assert "401" in err


@pytest.mark.parametrize("url", ["127.0.0.1:9001", "http://127.0.0.1:99999/v1", "http://"])
def test_text_for_no_url_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connect", "--url", url, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "D110"


def test_smoke_without_the_key_says_how_to_give_it(
    server: str, key_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["smoke", "--url", server, "--receipt", str(tmp_path / "receipt.json")]
    assert main(words) == 1
    assert "give --api-key-file FILE" in capsys.readouterr().err
    assert main([*words, "--api-key-file", str(key_file)]) == 1  # it knows no answer
    assert "--api-key-file FILE" not in capsys.readouterr().err
