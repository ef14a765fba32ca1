"""Which image a profile runs, from the list of digests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsv41 import digests, plan
from dsv41.cli import main
from dsv41.engines.trees import TREES
from dsv41.errors import CheckFailed, Unsafe
from planned import SPARK_PROFILES

ROOT = Path(__file__).parent.parent
ONE = "sha256:" + "1" * 64


def listed(tmp_path: Path, images: Any, *, schema: str = digests.SCHEMA) -> Path:
    file = tmp_path / "digests.json"
    file.write_text(json.dumps({"schema": schema, "images": images}))
    return file


def test_a_null_is_not_known(tmp_path: Path) -> None:
    found = digests.known(listed(tmp_path, {"tp3": None, "tp4": ONE}))
    assert found == {"tp4": f"localhost/dsv41/tp4@{ONE}"}


def test_every_profile_and_tree_of_an_image_is_listed() -> None:
    images = json.loads((ROOT / "nix" / "images" / "digests.json").read_text())["images"]
    assert set(SPARK_PROFILES) <= set(images)
    # the recipe has two stacks, each on its own tree
    recipe = {("tp3", "sglang-base"): "tp3-recipe", ("tp4", "sglang-branch"): "tp4-recipe"}
    for (profile, tree), name in recipe.items():
        assert tree in TREES
        assert digests.image_name(profile, tree=tree) == name
        assert name in images
    for profile in SPARK_PROFILES:
        assert digests.image_name(profile, tree="sglang-0.5.23") == profile


@pytest.mark.parametrize(
    ("images", "schema", "says"),
    [
        ({"tp3": "latest"}, digests.SCHEMA, "tp3 is 'latest', expected sha256: and 64 hex"),
        ({"tp3": 3}, digests.SCHEMA, "tp3 is 3, expected"),
        ({}, "dsv41.digests/2", "its schema is 'dsv41.digests/2', expected 'dsv41.digests/1'"),
        ("tp3", digests.SCHEMA, "ValueError"),
    ],
)
def test_a_malformed_list_is_refused(tmp_path: Path, images: Any, schema: str, says: str) -> None:
    with pytest.raises(CheckFailed, match=r"^D186") as caught:
        digests.known(listed(tmp_path, images, schema=schema))
    assert says in caught.value.says


def test_a_list_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "digests.json").write_text("{")
    with pytest.raises(CheckFailed, match=r"^D186"):
        digests.known(tmp_path / "digests.json")


def test_without_a_list_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(digests, "PLACES", (tmp_path / "absent",))
    assert digests.known() == {}


def test_an_installed_package_has_its_own_list(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside = listed(tmp_path, {"tp3": ONE})
    monkeypatch.setattr(digests, "PLACES", (beside, digests.PLACES[1]))
    assert digests.known() == {"tp3": f"localhost/dsv41/tp3@{ONE}"}


def test_an_unknown_image_is_refused_where_it_would_be_run() -> None:
    with pytest.raises(Unsafe, match=r"^D180 The image of profile tp3 is not known"):
        digests.require(None, profile="tp3")
    assert digests.require("x@sha256:1", profile="tp3") == "x@sha256:1"


@pytest.fixture
def image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Any:
    """The image that `dsv41 plan` names for a command line, with a list of digests."""
    images = {"tp3": ONE, "tp3-recipe": "sha256:" + "2" * 64, "tp4": None}
    monkeypatch.setattr(digests, "PLACES", (listed(tmp_path, images),))

    def call(profile: str, *words: str) -> str | None:
        assert main(["plan", "--example", profile]) == 0
        fleet = tmp_path / "fleet.toml"
        fleet.write_text(capsys.readouterr().out)
        given = ["--fleet", str(fleet)] if profile != "local" else []
        assert main(["plan", "--profile", profile, *given, "--json", *words]) == 0
        made = plan.parse(capsys.readouterr().out, where="stdout")
        (found,) = {rank.image for rank in made.ranks}
        return found

    return call


def test_plan_takes_the_listed_image(image: Any) -> None:
    assert image("tp3") == f"localhost/dsv41/tp3@{ONE}"
    assert image("tp3", "--tree", "sglang-base") == "localhost/dsv41/tp3-recipe@sha256:" + "2" * 64
    assert image("tp4") is None


def test_a_profile_of_ones_own_runs_the_image_of_the_one_that_it_extends(
    image: Any, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "mine"\nextends = "tp3"\nsays = "mine"\n')
    assert image(str(mine)) == f"localhost/dsv41/tp3@{ONE}"


def test_an_image_that_is_given_wins(image: Any) -> None:
    other = "registry.example/x@sha256:" + "3" * 64
    assert image("tp3", "--image", other) == other
