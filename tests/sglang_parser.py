"""Run by the Python that has SGLang (make test-flags): what its own parser and sources say.

Reads {"argv": [[...], ...], "variables": [...]} from stdin, writes one JSON document to stdout.
"""
# ruff: noqa: T201 - a program of another environment

import argparse
import inspect
import json
import sys
import warnings
from importlib import import_module
from typing import Any


def engine(module: str) -> Any:
    """A module of SGLang, which the environment of the tests does not have."""
    return import_module(f"sglang.srt.{module}")


def declare_torchvision_ops() -> object:
    """Beside a CPU torch, torchvision's import fails without the declaration of two ops."""
    torch: Any = import_module("torch")
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def parser_says(argvs: list[list[str]]) -> list[dict[str, object]]:
    """Each command line as the engine reads it; an unknown flag or choice ends the program."""
    parser = argparse.ArgumentParser()
    engine("server_args").ServerArgs.add_cli_args(parser)
    parsed = [vars(parser.parse_args(argv)) for argv in argvs]
    plain = (str, int, float, bool, type(None))
    return [{k: v for k, v in one.items() if isinstance(v, plain)} for one in parsed]


def variables_known(names: list[str]) -> dict[str, object]:
    """Default of each environment variable that the engine declares; absent when it does not."""
    fields = {name: getattr(type(engine("environ").envs), name, None) for name in names}
    return {name: repr(field.default) for name, field in fields.items() if field is not None}


def behaviors() -> dict[str, object]:
    """What the profiles work around; what they rely on: tests/engines/test_upstream.py."""
    engram = engine("layers.engram")
    moe = engine("layers.quantization.mxfp4_flashinfer_cutlass_moe")
    return {
        "equal_blocks": "expects one equal block per request" in inspect.getsource(engram),
        "slices_of_128": "intermediate_size_per_partition % 128" in inspect.getsource(moe),
    }


def main() -> None:
    """Answer the question on stdin."""
    warnings.filterwarnings("ignore")
    question = json.load(sys.stdin)
    kept = declare_torchvision_ops()
    answer = {
        "parsed": parser_says(question["argv"]),
        "variables": variables_known(question["variables"]),
        "behaviors": behaviors(),
    }
    print("\nANSWER " + json.dumps(answer))
    del kept


if __name__ == "__main__":
    main()
