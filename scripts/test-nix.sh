#!/bin/sh
# Evaluates and builds the flake with a real nix on a machine that has neither nixpkgs nor a binary cache.
# tests/nix/hostpkgs stands in for nixpkgs: the host's compiler, and Python with its packages from .venv, which
# lies outside the store (hence --impure). tests/nix/stub/poetry2nix stands in for poetry2nix, a small folder for
# the sources of engine parts. tests/nix/outputs.json lists what the flake must have.
# shellcheck disable=SC2086 # $stand_in and $offline are lists of words
set -eu
cd "$(dirname "$0")/.."
say() { echo "test-nix: $*" >&2; }
command -v apt-get > /dev/null ||
  { say "this check is for Debian; where the real inputs can be fetched, run: nix flake check"; exit 2; }
[ -x .venv/bin/python ] || { say ".venv is missing; run: make setup"; exit 2; }
for tool in patch patchelf shellcheck; do
  command -v $tool > /dev/null || { say "$tool is missing; install it with: apt-get install $tool"; exit 2; }
done
[ -z "$(git ls-files --others --exclude-standard flake.nix flake.lock nix csrc python tests)" ] ||
  say "note: a flake sees only files that git tracks; the untracked ones are left out until git add"

began=$(date +%s)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scripts/get-nix.sh > "$work/version"
export PATH="${NIX_PREFIX:-/opt/nix-debian}/bin:$PATH"
export NIX_CONFIG='experimental-features = nix-command flakes
sandbox = false
build-users-group =
substituters =
flake-registry =
max-jobs = auto
warn-dirty = false'
DSV41_SITE=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export DSV41_SITE
python=.venv/bin/python
# the tracked files as they are now, so that an edit meanwhile does not get between two steps
nix flake metadata --json > "$work/metadata"
tree=$($python -c 'import json, sys; print(json.load(open(sys.argv[1]))["path"])' "$work/metadata")
flake=path:$tree
stand_in="--no-write-lock-file
  --override-input nixpkgs path:$tree/tests/nix/hostpkgs
  --override-input bases path:$tree/tests/nix/bases
  --override-input poetry2nix path:$tree/tests/nix/stub/poetry2nix"
for source in b12x flashinfer nccl sglang sparkring; do
  stand_in="$stand_in --override-input $source path:$tree/tests/nix/stub/nccl"
done
offline="--impure $stand_in"
passed=0

# One command; what it says is shown only when it fails. It runs in a subshell that is no condition, for
# in a condition the shell would go on after a failed line of a function.
step() {
  name=$1 start=$(date +%s)
  shift
  set +e
  (set -e; "$@") > "$work/log" 2>&1
  status=$?
  set -e
  [ $status = 0 ] || { cat "$work/log" >&2; say "FAILED: $name"; exit 1; }
  passed=$((passed + 1))
  say "ok: $name ($(($(date +%s) - start)) s)"
}

parses() { find "$tree" -name '*.nix' -print0 | xargs -0 nix-instantiate --parse; }

# evaluated without --impure
outputs() {
  nix flake show --json --all-systems $stand_in "$flake" > "$work/outputs.json"
  $python - "$work/outputs.json" "$tree/tests/nix/outputs.json" <<'EOF'
import json, sys
shown, wanted = (json.load(open(path)) for path in sys.argv[1:])
for kind, names in wanted.items():
    by_system = kind in ("packages", "apps", "checks", "devShells")
    for system in ("x86_64-linux", "aarch64-linux") if by_system else ("",):
        found = shown.get(kind, {}).get(system, {}) if by_system else shown.get(kind, {})
        assert sorted(found) == sorted(names), f"{kind} {system}: found {sorted(found)}, wanted {names}"
assert set(shown) == set(wanted), set(shown)
EOF
}

refusals() {
  nix eval --impure --json --file "$tree/tests/nix/refusals.nix" > "$work/refusals.json"
  $python -c 'import json, sys; cases = json.load(open(sys.argv[1])); assert all(cases.values()), cases' \
    "$work/refusals.json"
}

# NIXPKGS_LIB=/path/to/nixpkgs/lib: the module's cases and the parity list on nixpkgs' own lib
own_lib() {
  nix eval --impure --json --expr "let lib = import (builtins.getEnv \"NIXPKGS_LIB\"); in import $tree/tests/nix/own-lib.nix { inherit lib; }" \
    > "$work/own-lib.json"
  $python -c 'import json, sys; found = json.load(open(sys.argv[1])); assert not found, found' "$work/own-lib.json"
}

help_is_shown() { nix run $offline "$flake#serve-local" -- --help | grep -- --state-dir; }
next_is_shown() { nix run $offline "$flake" | grep serve-local; }

# a real start on a free port, a question with a known answer, a stop whatever came of it
serves() {
  port=$($python -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
  stop="nix run $offline $flake#dsv41 -- stop --profile local --state-dir $work/state"
  trap '$stop' EXIT
  nix run $offline "$flake#serve-local" -- --tp 1 --port "$port" --state-dir "$work/state" --detach
  $python - "http://127.0.0.1:$port/v1/chat/completions" <<'EOF'
import json, sys, urllib.request
ask = {"model": "dsv41-fixture", "messages": [{"role": "user", "content": "What is 19 + 23?"}]}
request = urllib.request.Request(sys.argv[1], json.dumps(ask).encode(), {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request, timeout=60))
assert "42" in answer["choices"][0]["message"]["content"], answer
EOF
}

# with the real bases: an image whose base is not pinned has no digest in the list either
digests() {
  $python scripts/image_digests.py --check --impure --file "$tree/tests/nix/images.nix" --arg bases "$tree/nix/images/bases"
}

flake_lock() { git diff --exit-code -- flake.lock && cmp flake.lock "$work/flake.lock"; }

cp flake.lock "$work"
step "every Nix file parses" parses
step "both systems have all outputs" outputs
step "the stub of poetry2nix refuses what it must" refusals
step "every output evaluates and every check builds" nix flake check --all-systems --print-build-logs $offline "$flake"
step "row-store and dsv41 are the same bytes when built again" \
  nix build --rebuild --no-link --print-build-logs $offline "$flake#row-store" "$flake#dsv41"
[ -z "${NIXPKGS_LIB:-}" ] || step "the module and the stand-in agree with the lib in NIXPKGS_LIB" own_lib
step "the listed image digests are those of these files" digests
step "nix run .#serve-local -- --help" help_is_shown
step "nix run . names the next commands" next_is_shown
step "nix run .#serve-local serves, answers and stops" serves
step "flake.lock is unchanged" flake_lock
say "$passed steps passed in $(($(date +%s) - began)) s with $(cat "$work/version")"
[ -n "${NIXPKGS_LIB:-}" ] || say "not run here: the module on nixpkgs' own lib (give NIXPKGS_LIB=/path/to/nixpkgs/lib)"
say "not run here: the real nixpkgs and the real poetry2nix (where they can be fetched: nix flake check)"
