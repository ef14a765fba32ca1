"""Objects of a registry by their digest, against a real server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import download
from download import Refused
from oci_registry import Content, digest_of, serving
from registry import Registry, fetch

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "nix" / "images" / "tools"
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


def test_a_token_that_is_none_is_refused(content: Content, reference: str, tmp_path: Path) -> None:
    for token in (b"<html>", b"[]", b"{}"):
        content.token = token
        with pytest.raises(Refused, match=r"^D183 http://.*/token gives no token for "):
            fetch(Registry(reference), "blobs", content.add(DATA), tmp_path / "out")
