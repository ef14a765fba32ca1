"""Objects of a registry by their digest, and pins of bases; against a real server."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import download
import pin_image
from download import Refused
from oci_registry import Content, digest_of, serving, synthetic
from registry import Registry, fetch

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "nix" / "images" / "tools"
BASES = ROOT / "tests" / "nix" / "bases"
DATA = bytes(range(256)) * 40


@pytest.fixture
def content() -> Content:
    return Content()


@pytest.fixture
def reference(content: Content) -> Iterator[str]:
    with serving(content) as reference:
        yield reference


def test_a_blob_comes_by_token_and_redirect(
    content: Content, reference: str, tmp_path: Path
) -> None:
    digest = content.add(DATA)
    fetch(Registry(reference), "blobs", digest, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == DATA
    assert content.asked == [
        f"/v2/group/r/blobs/{digest}",
        "/token?service=test&scope=repository%3Ar%3Apull",
        f"/v2/group/r/blobs/{digest}",
        f"/cdn/{digest}",
    ]


def test_without_a_login_no_token_is_asked(
    content: Content, reference: str, tmp_path: Path
) -> None:
    content.login = False
    fetch(Registry(reference), "blobs", content.add(DATA), tmp_path / "out")
    assert len(content.asked) == 2


@pytest.mark.parametrize("ranges", [True, False])
def test_a_body_that_breaks_off_is_resumed(
    content: Content, reference: str, tmp_path: Path, *, ranges: bool
) -> None:
    digest = content.add(DATA)
    content.login, content.ranges, content.cuts = False, ranges, 1
    fetch(Registry(reference), "blobs", digest, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == DATA
    assert f"bytes={len(DATA) // 2}- /cdn/{digest}" in content.asked


def test_a_busy_registry_is_asked_again(content: Content, reference: str, tmp_path: Path) -> None:
    content.busy = 2
    fetch(Registry(reference), "blobs", content.add(DATA), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == DATA


def test_one_that_never_gives_all_is_refused(
    content: Content, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    content.cuts, content.login, content.ranges = 99, False, False
    with pytest.raises(Refused, match=r"^D183 .* bytes came\.$"):
        fetch(Registry(reference), "blobs", content.add(DATA), tmp_path / "out")


def test_a_missing_object_is_refused_at_once(
    content: Content, reference: str, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=r"^D183 .* does not give sha256:0+: HTTP 404\.$"):
        fetch(Registry(reference), "blobs", f"sha256:{'0' * 64}", tmp_path / "out")
    assert len(content.asked) == 3


def test_other_bytes_are_refused_with_both_hashes(
    content: Content, reference: str, tmp_path: Path
) -> None:
    wanted, other = digest_of(DATA), digest_of(b"other")
    content.objects[wanted] = b"other"
    content.objects[other] = b"other"
    with pytest.raises(Refused) as caught:
        fetch(Registry(reference), "blobs", wanted, tmp_path / "out")
    assert str(caught.value) == (
        f"D183 {reference} gave 5 bytes with SHA-256 {other[7:]}; expected {wanted}."
    )


@pytest.mark.parametrize("layout", ["blobs/sha256", "."])
def test_folders_come_before_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    digest = digest_of(DATA)
    (tmp_path / layout).mkdir(parents=True, exist_ok=True)
    (tmp_path / layout / digest[7:]).write_bytes(DATA)
    monkeypatch.setenv("DSV41_BLOBS", f"/nonexistent:{tmp_path}:")
    fetch(Registry("http://127.0.0.1:9/r"), "blobs", digest, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == DATA


def test_a_tampered_file_of_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = digest_of(DATA)
    (tmp_path / digest[7:]).write_bytes(DATA[:-1] + b"x")
    monkeypatch.setenv("DSV41_BLOBS", str(tmp_path))
    with pytest.raises(Refused, match=rf"^D183 {tmp_path}/{digest[7:]} gave 10240 bytes"):
        fetch(Registry("http://127.0.0.1:9/r"), "blobs", digest, tmp_path / "out")


def test_a_file_by_url_needs_its_hash(content: Content, reference: str, tmp_path: Path) -> None:
    url = f"{reference.removesuffix('/group/r')}/cdn/{content.add(DATA)}"
    command = [sys.executable, str(TOOLS / "download.py"), url]
    right = [*command, digest_of(DATA)[7:], str(tmp_path / "out")]
    assert subprocess.run(right, check=True, capture_output=True).stdout == b""
    assert (tmp_path / "out").read_bytes() == DATA
    wrong = [*command, "0" * 64, str(tmp_path / "out")]
    done = subprocess.run(wrong, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"D183 {url} gave 10240 bytes with SHA-256 ")


def test_no_server_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    with pytest.raises(Refused, match=r"^D183 http://127.0.0.1:9/r does not give .*refused"):
        fetch(Registry("http://127.0.0.1:9/r"), "blobs", f"sha256:{'0' * 64}", tmp_path / "out")


# pin-image


def options(folder: Path, *words: str) -> argparse.Namespace:
    name, image, *_ = [*words, None, None]
    return argparse.Namespace(into=folder, name=name, image=image, arch="arm64")


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
