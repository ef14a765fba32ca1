"""Which image a profile runs: the digests that the flake's images have, as a data file.

`nix/images/digests.json` is written by `make digests`; the operator package carries a copy beside
this module, since no image may contain its own digest. A digest that is not known is null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41.errors import CheckFailed, Unsafe

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

SCHEMA = "dsv41.digests/1"
NAME = "localhost/dsv41"  # what images are called where they are loaded
# beside this module in an installed package, else in the checkout that it belongs to
PLACES: tuple[Traversable, ...] = (
    files("dsv41").joinpath("digests.json"),
    Path(__file__).parents[2] / "nix" / "images" / "digests.json",
)
# engine trees whose image is rebuilt from the recipe's own base -> the suffix of its name
_RECIPE = {"sglang-base": "-recipe", "sglang-branch": "-recipe"}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def image_name(profile: str, *, tree: str) -> str:
    """The flake's name of a profile's image, without `image-`."""
    return profile + _RECIPE.get(tree, "")


def known(file: Path | None = None) -> dict[str, str]:
    """Image name -> `localhost/dsv41/NAME@sha256:...`, for every image whose digest is known.

    Without a file, the package's own; where there is none (a wheel from elsewhere), nothing is
    known.

    Raises:
        CheckFailed: D186, when the file is not what it must be.
    """
    place = file or next((path for path in PLACES if path.is_file()), None)
    if place is None:
        return {}
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise _malformed(place, f"its schema is {data['schema']!r}, expected {SCHEMA!r}")
        images: Mapping[str, str | None] = dict(data["images"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _malformed(place, repr(error)) from error
    found = {}
    for name, digest in images.items():
        if digest is None:
            continue
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise _malformed(place, f"{name} is {digest!r}, expected sha256: and 64 hex digits")
        found[name] = f"{NAME}/{name}@{digest}"
    return found


def require(image: str | None, *, profile: str) -> str:
    """The image of a Plan; Unsafe D180 when it is not known."""
    if image is None:
        raise Unsafe(
            "D180",
            f"The image of profile {profile} is not known by digest: expected sha256:..., found "
            "null.",
            fix=f"nix build .#image-{profile}, then make digests; or give --image REF@sha256:...",
        )
    return image


def _malformed(place: Traversable, says: str) -> CheckFailed:
    return CheckFailed(
        "D186",
        f"{place} is not a file of image digests: {says}.",
        fix="git checkout nix/images/digests.json, or make digests",
    )
