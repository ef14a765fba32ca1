#!/bin/sh
# Builds the layers of locked packages without a hash and lists them: diff_id and size, from which an image's digest
# is known without them. Needs a network, nix (scripts/get-nix.sh) and .venv; run it after scripts/lock-images.sh.
set -eu
cd "$(dirname "$0")/.."
export PATH="${NIX_PREFIX:-/opt/nix-debian}/bin:$PATH"
DSV41_SITE=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# shellcheck disable=SC2016 # $(REPO_URI) is apt's, not the shell's
DSV41_DEB_MIRROR=${DSV41_DEB_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' | grep -m1 '/debian/*$')}
export DSV41_SITE DSV41_DEB_MIRROR
measure() { cat "$(nix build --impure --no-link --print-out-paths -f tests/nix/images.nix "$1")"; }
local=nix/images/local/layers.json recipe=nix/images/recipe/layers.json
amd64=$(measure image-local.measured.amd64)
arm64=$(measure image-local.measured.arm64)
printf '{"amd64": %s, "arm64": %s}' "$amd64" "$arm64" | .venv/bin/python -m json.tool --indent 2 > $local.new
mv $local.new $local
measure image-tp4-recipe.measured > $recipe.new
mv $recipe.new $recipe
