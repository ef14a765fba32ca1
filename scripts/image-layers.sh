#!/bin/sh
# Lists the layers of locked packages: diff_id and size, from which an image's digest is known without them. Each is
# written to nowhere, only counted and hashed. Needs a network, nix (scripts/get-nix.sh) and .venv; run it after
# scripts/lock-images.sh or dsv41 lock-engine, for all of them or for those named: local, recipe, engine (8.4 GB).
set -eu
cd "$(dirname "$0")/.."
export PATH="${NIX_PREFIX:-/opt/nix-debian}/bin:$PATH"
DSV41_SITE=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# shellcheck disable=SC2016 # $(REPO_URI) is apt's, not the shell's
DSV41_DEB_MIRROR=${DSV41_DEB_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' | grep -m1 '/debian/*$')}
export DSV41_SITE DSV41_DEB_MIRROR
measure() { cat "$(nix build --impure --no-link --print-out-paths -f tests/nix/images.nix "$1")"; }
images=nix/images
# two images that differ in what they are made of, as one list
both() {
  printf '{"%s": %s, "%s": %s}' "$1" "$(measure "$2")" "$3" "$(measure "$4")" | .venv/bin/python -m json.tool --indent 2
}
[ $# -gt 0 ] || set -- local recipe engine
for part; do
  case $part in
    local) both amd64 image-local.measured.amd64 arm64 image-local.measured.arm64 ;;
    recipe) measure image-tp4-recipe.measured ;;
    engine) both sglang image-tp3.measured vllm image-tp4-cycle.measured ;;
    *) echo "image-layers: $part is none of local, recipe, engine" >&2; exit 2 ;;
  esac > "$images/$part/layers.json.new"
  mv "$images/$part/layers.json.new" "$images/$part/layers.json"
done
