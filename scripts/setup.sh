#!/bin/sh
# Makes .venv with everything that development and the local engine need: the locked packages of poetry.lock
# (by hash), torch, the row store built from csrc/, and dsv41 itself. Quick when nothing changed.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
torch=${TORCH:-torch==2.13.0}

missing() { echo "setup: $1 is missing; install it with: apt-get install $2" >&2; exit 2; }
command -v "$python" >/dev/null || missing python3 python3
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { echo "setup: $python is $("$python" -V); dsv41 needs Python 3.11 or newer (set PYTHON=...)" >&2; exit 2; }
"$python" -c 'import venv, ensurepip' 2>/dev/null || missing "Python's venv" python3-venv
"$python" -c 'import os, sys, sysconfig as s; sys.exit(not os.path.exists(os.path.join(s.get_path("include"), "Python.h")))' ||
  missing "Python.h" python3-dev
command -v g++ >/dev/null || missing g++ g++

# what decides the content of .venv
wanted=$({ "$python" -VV; echo "$torch"; cat pyproject.toml poetry.lock scripts/setup.sh; find csrc -type f -not -path 'csrc/build/*' | LC_ALL=C sort | xargs cat; } | sha256sum)
[ "$(cat .venv/setup-done 2>/dev/null)" != "$wanted" ] || exit 0

echo "setup: making .venv (about a minute the first time)" >&2
[ -x .venv/bin/python ] || "$python" -m venv .venv
rm -f .venv/setup-done
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
locked() { # locked GROUP: install the packages of one group of the lock, or of all others
  "$python" scripts/requirements.py poetry.lock "$1" > ".venv/requirements-$1.txt"
  pip install --no-compile --no-deps --require-hashes -r ".venv/requirements-$1.txt"
}
pip install --no-compile --upgrade "pip>=25" || true # 23.0 works too, but reads an index at half the speed
locked build
# Bytecode of what is imported, and of no more: all of torch would take a minute, none would cost each process seconds.
import() { env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c "import $1"; }
# two at a time: fetching and unpacking beside compiling, then imports
{ locked others && pip install --no-compile "$torch"; } &
fetching=$!
pip install --no-compile --no-deps --no-build-isolation --force-reinstall ./csrc
pip install --no-deps --no-build-isolation --editable .
wait $fetching
import "hypothesis.strategies, openai, pytest, pytest_timeout, xdist.plugin, dsv41_rows, dsv41.cli" &
importing=$!
import "torch, uvicorn, starlette.applications, dsv41.local.fixture.prepare, dsv41.local.process"
wait $importing
echo "$wanted" > .venv/setup-done
