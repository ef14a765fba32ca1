#!/bin/sh
# Makes .cache/flags: SGLang 0.5.23 with a CPU torch, and vLLM 0.33.0's Python files beside it, enough of both to ask
# their own parsers which flags they know (tests/test_flags.py, `make test-flags`). About 3 GB on disk and a few
# minutes; never part of .venv.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=.cache/flags/sglang-0.5.23
wanted=$({ "$python" -VV; cat scripts/setup-flags.sh; } | sha256sum)
[ "$(cat $venv/setup-done 2>/dev/null)" != "$wanted" ] || exit 0

echo "setup-flags: making $venv (about 0.6 GB to download)" >&2
[ -x $venv/bin/python ] || "$python" -m venv $venv
rm -f $venv/setup-done
pip() { $venv/bin/python -m pip --disable-pip-version-check --quiet install "$@"; }
pip torch==2.13.0
# by hand and without dependencies: those that are left out need a GPU or are never reached by the parser
pip --no-deps sglang==0.5.23 triton==3.8.0
pip transformers==5.19.0 tokenizers==0.23.2 fastapi pydantic orjson pyzmq uvicorn uvloop msgspec psutil pybase64 \
  requests aiohttp xxhash packaging einops partial_json_parser regex openai==2.8.0 prometheus-client python-multipart \
  setproctitle IPython interegular pillow sentencepiece==0.2.1 tiktoken openai-harmony==0.0.4 deepseek-recipe==0.2.0 zstandard
pip --no-deps torchvision==0.28.0 apache-tvm-ffi==0.1.11 jsonschema jsonschema-specifications referencing rpds-py dill \
  cloudpickle xgrammar==0.2.7 llguidance compressed-tensors==0.18.0 loguru soundfile==0.13.1 cffi pycparser scipy gguf \
  kernels==0.14.1 outlines==0.1.11 datasets easydict timm==1.0.25 watchfiles cuda-python cuda-bindings cuda-pathfinder \
  nvidia-ml-py tabulate numba==0.65.1 llvmlite

# vLLM: only its Python files (its libraries need a GPU's), and what its parser imports beyond SGLang's packages
vllm=.cache/flags/vllm-0.33.0
rm -rf $vllm && mkdir -p $vllm
$venv/bin/python -m pip --disable-pip-version-check --quiet download --no-deps --only-binary=:all: vllm==0.33.0 -d $vllm
$venv/bin/python - $vllm <<'PYTHON'
import sys, zipfile
from pathlib import Path
folder = Path(sys.argv[1])
(wheel,) = folder.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
wheel.unlink()
PYTHON
pip --no-deps --target $vllm openai==3.57.0 jiter httpx2 httpcore2 truststore sniffio distro cbor2 blake3 cachetools \
  prometheus-fastapi-instrumentator depyf astor diskcache lark outlines-core lm-format-enforcer mcp sse-starlette httpx-sse \
  pydantic-settings python-dotenv model-hosting-container-standards jmespath ijson oss-harmony py-cpuinfo supervisor
echo "$wanted" > $venv/setup-done
