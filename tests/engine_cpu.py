"""Import this before SGLang on a machine without a GPU.

PyPI's torchvision stops beside a CPU torch with "operator torchvision::nms does not exist"; two
declared operators cure it. The library object must live as long as the process.
"""

import torch

OPERATORS = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
for name in ("nms", "qnms"):
    takes = "(Tensor dets, Tensor scores, float iou_threshold)"
    OPERATORS.define(f"{name}{takes} -> Tensor")  # type: ignore[no-untyped-call]
