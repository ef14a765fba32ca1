#!/bin/sh
# Runs tests/engines in the real SGLang, by its own Python, once a tree. Arguments go to pytest; a file below tests/ takes the
# place of the whole folder.
set -u
cd "$(dirname "$0")/.." || exit
root=$PWD/.cache/engines
failed=0
case " $* " in *" tests/"*) ;; *) set -- tests/engines "$@" ;; esac
for tree in sglang-0.5.23 sglang-0.5.21; do
  path=; [ $tree = sglang-0.5.23 ] || path=$root/$tree
  OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 CUDA_VISIBLE_DEVICES='' PYTHONPATH=$path \
    "$root/sglang-0.5.23/bin/python" -m pytest -p no:cacheprovider "$@" || failed=1
done
exit $failed
