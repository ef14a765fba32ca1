#!/bin/sh
# Packs what a GPU machine without a package registry lacks for vLLM 0.33.0: the wheels of
# tests/gpu/wheels.txt, without what SM90 never loads for this model, as one archive in parts.
#   scripts/gpu-bundle.sh [FOLDER]     default .cache/gpu-bundle; 456 MB to download, 3 minutes on two cores
# There: cat part_* | xz -dc -T0 | tar xf - -C SITE, then PYTHONPATH=SITE make test-gpu PYTHON=python3
# (x86-64, CPython 3.12, torch 2.11 with CUDA 13.0, Triton 3.6, transformers 5.17, nvcc; CUDA_HOME set).
set -eu
cd "$(dirname "$0")/.."
out=${1:-.cache/gpu-bundle}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$out/wheels"
rm -rf "$out/site" "$out"/part_*

platforms=
for tag in 1 2010 _2_12 2014 _2_17 _2_24 _2_26 _2_27 _2_28 _2_31 _2_34; do
  platforms="$platforms --platform manylinux${tag}_x86_64"
done
# shellcheck disable=SC2086 # one word a platform
"$python" -m pip --disable-pip-version-check --quiet download --no-deps --only-binary=:all: --require-hashes \
  --python-version 3.12 --implementation cp $platforms -d "$out/wheels" -r tests/gpu/wheels.txt

mkdir "$out/site"
for wheel in "$out"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$out/site"; done
cd "$out/site"
for part in *.data/purelib *.data/platlib; do
  if [ -d "$part" ]; then cp -r "$part/." .; fi
done
rm -rf ./*.data
# kernels of other GPUs and other attention classes, benchmarks, pages of documentation
rm -rf vllm/vllm-rs vllm/vllm_flash_attn/*.so vllm/_flashkda_C* vllm/_qutlass_C* vllm/benchmarks \
  vllm/third_party/fmha_sm100/cutlass vllm/entrypoints/serve/instrumentator/static
: >vllm/vllm_flash_attn/_vllm_fa2_C.py # vLLM only looks whether such a module is there
# ROCm and sources; tilelang compiles with what stays of 3rdparty
rm -rf tilelang/3rdparty/composable_kernel tilelang/3rdparty/tvm/src
rm -rf z3/include z3/lib/libz3.so && ln -s libz3.so.4.15 z3/lib/libz3.so # the wheel holds it twice
rm -rf mistral_common/data pycountry/locales
find . -name '*.pyi' -delete
find . -name __pycache__ -prune -exec rm -rf {} +

# blocks of 12 MiB: unpacked by as many threads as there are; parts below 57 MB
tar c --sort=name --mtime=@0 --owner=0 --group=0 . | xz -T2 -6 --block-size=12MiB | split -b 57000000 -d - ../part_
cd .. && rm -rf site && ls -l part_*
