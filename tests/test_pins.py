"""What is pinned: the rules of the manifest, and lock, manifest, JSON for Nix and docs as one."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv41 import pins
from dsv41.errors import UsageError

ROOT = Path(__file__).parent.parent
MANIFEST, LOCK = (ROOT / pins.MANIFEST).read_text(), (ROOT / pins.LOCK).read_text()
PINS = {pin.name: pin for pin in pins.read(MANIFEST, LOCK)}

COMMIT, SHA256 = "a1" * 20, "b2" * 32
URL = f"https://host.example/owner/name/{COMMIT}/file"
ROW = f"part {COMMIT} {SHA256} {URL} Apache-2.0"
NO_INPUTS = json.dumps({"nodes": {"root": {"inputs": {}}}, "root": "root", "version": 7})


def refused(manifest: str, lock: str = NO_INPUTS) -> UsageError:
    with pytest.raises(UsageError) as caught:
        pins.read(manifest, lock)
    return caught.value


def lock_of(**locked: object) -> str:
    return json.dumps(
        {
            "nodes": {"root": {"inputs": {"sglang": "sglang_2"}}, "sglang_2": {"locked": locked}},
            "root": "root",
            "version": 7,
        }
    )


GITHUB = {"type": "github", "owner": "owner", "repo": "name", "rev": COMMIT}


def test_a_row_is_read() -> None:
    (pin,) = pins.read(f"# a comment\n\n{ROW}\n", NO_INPUTS)
    assert (pin.name, pin.commit, pin.sha256, pin.url) == ("part", COMMIT, SHA256, URL)
    assert (pin.license, pin.nar_hash, pin.is_input) == ("Apache-2.0", None, False)
    assert pin.repository == "owner/name"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (f"part {COMMIT} {SHA256} {URL}", "4 columns"),
        (f"part {COMMIT[1:]} {SHA256} {URL} MIT", "as its commit"),
        (f"part {COMMIT.upper()} {SHA256} {URL} MIT", "as its commit"),
        (f"part {COMMIT} {SHA256[1:]} {URL} MIT", "as its sha256"),
        (f"part {COMMIT} - {URL} MIT", "as its sha256"),
        (f"part {COMMIT} {SHA256} {URL.replace('https', 'http')} MIT", "as its url"),
        (f"part {COMMIT} {SHA256} https://host.example/main/file MIT", "without its commit"),
        (f"../part {COMMIT} {SHA256} {URL} MIT", "as its component"),
    ],
)
def test_a_malformed_row_is_refused_with_its_line(row: str, says: str) -> None:
    error = refused(f"# first\n{row}\n")
    assert error.code == "D171"
    assert "line 2" in error.says
    assert says in error.says


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    code = ""
    try:
        pins.read(text, NO_INPUTS)
    except UsageError as error:
        code = error.code
    assert code in ("", "D171", "D172")


def test_a_component_that_stands_twice_is_refused() -> None:
    error = refused(f"{ROW}\n{ROW}\n")
    assert error.code == "D172"
    assert "line 2" in error.says
    assert "line 1" in error.says


def test_an_input_and_its_archive_are_one_pin() -> None:
    lock = lock_of(**GITHUB, narHash=f"sha256-{'A' * 43}=")
    (pin,) = pins.read(ROW.replace("part", "sglang"), lock)
    assert (pin.sha256, pin.nar_hash, pin.is_input) == (SHA256, f"sha256-{'A' * 43}=", True)
    (alone,) = pins.read("", lock)
    assert (alone.sha256, alone.license) == (None, "Apache-2.0")
    assert alone.url == f"https://github.com/owner/name/archive/{COMMIT}.tar.gz"


def test_two_commits_of_one_source_are_refused() -> None:
    error = refused(ROW.replace("part", "sglang"), lock_of(**GITHUB | {"rev": "c3" * 20}))
    assert error.code == "D173"
    assert COMMIT in error.says
    assert "c3" * 20 in error.says


@pytest.mark.parametrize(
    "lock",
    [
        "",
        "[]",
        '{"version": 7}',
        NO_INPUTS.replace("7", "6"),
        lock_of(),
        lock_of(**GITHUB | {"type": "git"}),
        lock_of(**GITHUB | {"rev": "main"}),
        lock_of(**GITHUB, narHash="sha256-made-up"),
        lock_of(**GITHUB).replace('"sglang"', '"unknown"'),
    ],
)
def test_a_lock_that_pins_nothing_certain_is_refused(lock: str) -> None:
    assert refused("", lock).code == "D174"


def test_a_folder_of_this_tree_is_no_third_party() -> None:
    assert pins.read("", lock_of(type="path", path="./nix/images/bases")) == ()


def test_a_missing_nar_hash_is_filled_and_a_present_one_kept() -> None:
    lock, known = lock_of(**GITHUB), f"sha256-{'B' * 43}="
    filled = pins.filled(lock, {"sglang": known})
    assert [pin.nar_hash for pin in pins.read("", filled)] == [known]
    assert pins.filled(filled, {"sglang": known}) == filled
    with pytest.raises(ValueError, match="sglang"):
        pins.filled(filled, {"sglang": f"sha256-{'C' * 43}="})


def test_filling_nothing_leaves_the_committed_lock_as_nix_wrote_it() -> None:
    assert pins.filled(LOCK, {}) == LOCK


def test_nix_reads_what_the_two_files_say() -> None:
    """`make reference` writes nix/pins.json again."""
    assert (ROOT / pins.FOR_NIX).read_text() == pins.for_nix(tuple(PINS.values()))


def test_every_input_of_the_flake_is_pinned_and_its_license_known() -> None:
    names = {name for name, pin in PINS.items() if pin.is_input}
    assert names == set(pins.INPUT_LICENSES)
    urls = dict(re.findall(r"github:([\w.-]+/[\w.-]+)/([0-9a-f]{40})", flake()))
    sources = {name: PINS[name] for name in names - {"nixpkgs"}}
    assert urls == {pin.repository: pin.commit for pin in sources.values()}


def flake() -> str:
    return (ROOT / "flake.nix").read_text()


def test_the_pins_of_the_recipe_are_all_there() -> None:
    """As MiaAI-Lab's own manifest has them, at its commit 519a3988."""
    assert PINS["sglang"].commit.startswith("f80c91a4")
    assert PINS["b12x"].commit.startswith("a7d7d29b")
    assert PINS["rocenante/b12x-source.tar.gz"].commit.startswith("66aa6bd")
    ring = [pin for name, pin in PINS.items() if name.startswith("roce_ring/")]
    assert len(ring) == 9
    assert {pin.commit[:8] for pin in ring} == {"f16b5f43"}
    assert len([name for name in PINS if name.startswith("recipe/")]) == 6
    assert len({pin.sha256 for pin in PINS.values() if pin.sha256}) == MANIFEST.count("https://")


def test_docs_and_notice_name_every_source() -> None:
    licenses = (ROOT / "docs" / "reference" / "licenses.md").read_text()
    dependencies = (ROOT / "docs" / "explain" / "dependencies.md").read_text()
    notice = (ROOT / "NOTICE").read_text()
    fetched = notice[notice.index("Builds of the flake fetch") :]
    for pin in PINS.values():
        assert f"| `{pin.name}` | {pin.repository} at `{pin.commit[:12]}`" in licenses
        (line,) = [line for line in fetched.splitlines() if f" {pin.repository} " in line]
        assert pin.license in line
        assert not pin.is_input or pin.name in dependencies


def test_every_source_has_a_hash() -> None:
    """An input without a narHash has the SHA-256 of its archive."""
    assert not [name for name, pin in PINS.items() if not (pin.sha256 or pin.nar_hash)]
