#!/bin/sh
# Fetches by the hub's real client, in the versions that the engine images have, from a stand-in for the hub on loopback.
set -eu
cd "$(dirname "$0")/.."
for engine in sglang vllm; do
  lock=nix/images/engine/wheels-$engine-arm64.json
  version=$(sed -n 's/.*"name": "huggingface-hub", "version": "\([^"]*\)".*/\1/p' $lock)
  home=.cache/hub/$engine
  [ -x "$home/bin/python" ] || python3 -m venv "$home"
  "$home/bin/python" -c "import huggingface_hub as h; assert h.__version__ == '$version'" 2> /dev/null ||
    "$home/bin/python" -m pip install --quiet --disable-pip-version-check "huggingface_hub==$version"
done
exec .venv/bin/python -m pytest -m hub tests/test_hub.py "$@"
