"""Import this before SGLang on a machine without a GPU.

PyPI's torchvision stops beside a CPU torch with "operator torchvision::nms does not exist"; two
declared operators cure it. The library object must live as long as the process.
"""

import torch

OPERATORS = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
