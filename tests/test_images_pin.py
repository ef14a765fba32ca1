"""Pins of bases, kept by nix/images/tools/pin_image.py; against a real server."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pin_image
from download import Refused
from oci_registry import Content, serving, synthetic

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "nix" / "images" / "tools"
BASES = ROOT / "tests" / "nix" / "bases"


@pytest.fixture
def content() -> Content:
    return Content()


@pytest.fixture
def reference(content: Content) -> Iterator[str]:
    with serving(content) as reference:
        yield reference


def options(folder: Path, *words: str) -> argparse.Namespace:
    name, image, *_ = [*words, None, None]
    return argparse.Namespace(into=folder, name=name, image=image, arch="arm64", plain_http=False)


@pytest.fixture
def folder(content: Content, reference: str, tmp_path: Path) -> Path:
    """A folder of bases whose one pin is served by the registry, with no manifest yet."""
    pin = {**synthetic(BASES, content), "reference": reference}
    (tmp_path / "bases.json").write_text(json.dumps({"base": pin}))
    return tmp_path


def manifests(folder: Path) -> dict[str, bytes]:
    files = folder.glob("*.json")
    return {path.name: path.read_bytes() for path in files if path.stem != "bases"}


def test_pin_image_keeps_what_is_missing_byte_for_byte(
    content: Content, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pin_image.run(options(folder))
    have = manifests(folder)
    assert have == manifests(BASES)
    assert sorted(capsys.readouterr().out.split()) == sorted(str(folder / name) for name in have)
    assert not [asked for asked in content.asked if "0000000" in asked]


def test_pin_image_twice_asks_nothing(content: Content, folder: Path) -> None:
    pin_image.run(options(folder))
    content.asked.clear()
    pin_image.run(options(folder, "base"))
    assert content.asked == []


def test_pin_image_mends_a_changed_file(folder: Path) -> None:
    pin_image.run(options(folder))
    changed = folder / next(iter(manifests(folder)))
    before = changed.read_bytes()
    changed.write_bytes(before + b"\n")
    pin_image.run(options(folder))
    assert changed.read_bytes() == before


def test_pin_image_pins_what_a_tag_names(content: Content, folder: Path, reference: str) -> None:
    pin = json.loads((folder / "bases.json").read_text())["base"]
    content.tags["moving"] = pin["digest"]
    pin_image.run(options(folder, "other", f"{reference}:moving"))
    assert json.loads((folder / "bases.json").read_text()) == {"base": pin, "other": pin}


def kept(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
MEMBER = {"platform": {"os": "linux", "architecture": "arm64"}}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"<html>log in</html>", "D185 .*:moving is no JSON: "),
        (b"\xff", "D185 .*:moving is no JSON: "),
        (b"[]", "D185 .*:moving is no JSON object"),
        ({"schemaVersion": 1, "mediaType": LIST, "manifests": []}, "D185 .*schemaVersion 1 "),
        ({"schemaVersion": 2, "mediaType": "text/html"}, "D185 .*mediaType text/html; expected 2"),
        ({"schemaVersion": 2, "mediaType": LIST}, "D185 .*neither manifests nor layers"),
        ({"schemaVersion": 2, "mediaType": LIST, "manifests": []}, "D185 .*has 0 manifests"),
        ({"schemaVersion": 2, "manifests": [MEMBER]}, "D185 .* names None, which is no SHA"),
        (
            {"schemaVersion": 2, "manifests": [{**MEMBER, "digest": "sha256:../../../../tmp/x"}]},
            r"D185 .* names sha256:\.\./.*, which is no SHA-256",
        ),
        (
            {"schemaVersion": 2, "manifests": [{**MEMBER, "digest": f"sha256:{'1' * 64}"}]},
            "D183 .* does not give sha256:1",
        ),
        ({"schemaVersion": 2, "layers": []}, "D185 .* names None, which is no SHA"),
    ],
    ids=range(11),
)
def test_pin_image_changes_nothing_for_a_tag_that_names_no_image(
    content: Content, folder: Path, reference: str, answer: bytes | dict[str, object], says: str
) -> None:
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    content.tags["moving"] = content.add(data)
    before = kept(folder)
    with pytest.raises(Refused, match=f"^{says}"):
        pin_image.run(options(folder, "other", f"{reference}:moving"))
    assert kept(folder) == before


def test_pin_image_compares_a_tag_with_the_digest_that_comes_with_it(
    content: Content, folder: Path, reference: str
) -> None:
    digest = json.loads((folder / "bases.json").read_text())["base"]["digest"]
    content.tags["moving"], before = digest, kept(folder)
    content.headers["Docker-Content-Digest"] = f"sha256:{'2' * 64}"
    with pytest.raises(Refused, match=f"^D183 .* SHA-256 {digest}; the registry says sha256:222"):
        pin_image.run(options(folder, "other", f"{reference}:moving"))
    assert kept(folder) == before
    content.headers["Docker-Content-Digest"] = digest
    pin_image.run(options(folder, "other", f"{reference}:moving"))
    assert set(json.loads((folder / "bases.json").read_text())) == {"base", "other"}


def test_pin_image_takes_the_type_of_the_answer_where_the_document_has_none(
    content: Content, folder: Path, reference: str
) -> None:
    digest = json.loads((folder / "bases.json").read_text())["base"]["digest"]
    whole = json.loads(content.objects[digest])
    del whole["mediaType"]
    content.tags["moving"] = content.add(json.dumps(whole).encode())
    content.headers["Content-Type"] = "text/html; charset=utf-8"
    with pytest.raises(Refused, match=r"^D185 .*mediaType text/html; expected 2"):
        pin_image.run(options(folder, "other", f"{reference}:moving"))
    content.headers["Content-Type"] = "application/vnd.oci.image.index.v1+json"
    pin_image.run(options(folder, "other", f"{reference}:moving"))


def test_pin_image_asks_without_tls_on_this_machine_or_when_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(pin_image, "digest_of_tag", lambda image, *_: asked.append(image))
    far = "http://registry.example/r:tag"
    with pytest.raises(Refused, match=r"^D185 .* without TLS\. Fix: .*--plain-http\.$"):
        pin_image.pin_of(far, "arm64")
    assert asked == []
    pin_image.pin_of(far, "arm64", plain_http=True)
    pin_image.pin_of("registry.example/r:tag", "arm64")
    assert len(asked) == 2


def test_pin_image_says_that_its_list_is_no_json(folder: Path) -> None:
    (folder / "bases.json").write_text("{")
    with pytest.raises(Refused, match=r"^D185 .*bases.json is no JSON: "):
        pin_image.run(options(folder))


def test_pin_image_refuses_other_bytes_and_keeps_none(content: Content, folder: Path) -> None:
    digest = json.loads((folder / "bases.json").read_text())["base"]["digest"]
    content.objects[digest] += b" "
    with pytest.raises(Refused, match=f"expected {digest}"):
        pin_image.run(options(folder))
    assert [path.name for path in folder.iterdir()] == ["bases.json"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["none"], "D185 .* names no base none; it has base"),
        (["none", "http://far.example/r@sha256:12"], "D185 .* is no HOST"),
        (["base", "ubuntu"], "D185 ubuntu is no HOST/REPOSITORY@sha256"),
        (["base", "host/r@sha256:12"], "D185 host/r@sha256:12 is no HOST"),
    ],
)
def test_pin_image_refuses_wrong_words(folder: Path, words: list[str], says: str) -> None:
    with pytest.raises(Refused, match=f"^{says}"):
        pin_image.run(options(folder, *words))


def test_pin_image_refuses_another_architecture(folder: Path) -> None:
    pins = json.loads((folder / "bases.json").read_text())
    pins["base"]["arch"] = "riscv64"
    (folder / "bases.json").write_text(json.dumps(pins))
    with pytest.raises(Refused, match="has 0 manifests for linux/riscv64; expected 1"):
        pin_image.run(options(folder))


def test_pin_image_outside_of_a_checkout_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOLS / "pin_image.py")]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "D185 There is no nix/images/bases/bases.json here. Fix: run this in a checkout of the "
        "project.\n"
    )
