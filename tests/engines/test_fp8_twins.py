"""FP8 twins and the padded shared expert in the released engine's own functions, on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hooked import hooked, published
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod
from sglang.srt.layers.quantization.fp8_utils import Mxfp8DenseGemmBackend
from sglang.srt.models import deepseek_v4, dspark

from dsv41.adapters import twins
from dsv41.adapters.sglang import draft_head_fp8, shared_pad_k, wo_a_w8
from dsv41.errors import CheckFailed

GROUPS, RANK, WIDTH = 4, 64, 128


def was_fp8(*shape: int) -> torch.Tensor:
    """A weight as the engine dequantizes it: e4m3 values times a power of two, in bf16."""
    made = torch.Generator().manual_seed(len(shape))
    codes = torch.randint(0, 0x7F, shape, generator=made, dtype=torch.uint8)
    return (codes.view(torch.float8_e4m3fn).float() * 2.0**-9).to(torch.bfloat16)


class Attention(torch.nn.Module):
    """What the adapter looks for: the projection and its local groups."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.n_local_groups = GROUPS
        self.wo_a = torch.nn.Module()
        self.wo_a.weight = torch.nn.Parameter(
            weight.view(GROUPS * RANK, WIDTH), requires_grad=False
        )

    def matrix(self) -> torch.Tensor:
        """The weight as the engine passes it on."""
        return self.wo_a.weight.view(GROUPS, RANK, -1)  # type: ignore[operator]


@pytest.fixture(params=[0, 1], ids=["kept", "dropped"])
def _wo_a(request: pytest.FixtureRequest) -> Iterator[None]:
    wo_a_w8._on.cache_clear()
    with (
        published(),
        hooked(wo_a_w8.ADAPTER, DSV41_WO_A_W8="1", DSV41_WO_A_W8_DROP=str(request.param)),
    ):
        yield
    wo_a_w8._on.cache_clear()
    wo_a_w8.TWINS.clear()


@pytest.mark.usefixtures("_wo_a")
def test_products_with_wo_a(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(1)
    weight = was_fp8(GROUPS, RANK, WIDTH)
    layer = Attention(weight.clone())
    model = torch.nn.ModuleList([layer])
    assert wo_a_w8.load_target(None, model) is None
    dropped = "dropped" in request.node.name
    assert (layer.matrix().stride(-1) == 0) == dropped
    for rows in (1, 6, 8, 9, 40):
        o = torch.randn(rows, GROUPS, WIDTH).to(torch.bfloat16)
        found = deepseek_v4._apply_wo_a_bf16_matmul(o, layer.matrix(), True)
        exact = torch.einsum("tgd,grd->tgr", o.double(), weight.double())
        assert (found.double() - exact).abs().max() <= exact.abs().max() * 2.0**-8
        if rows > wo_a_w8.FEW_ROWS:  # the engine's own product, with the same bits
            assert torch.equal(found, torch.einsum("tgd,grd->tgr", o, weight))


@pytest.mark.usefixtures("_wo_a")
def test_a_weight_without_an_exact_twin_stays_as_it_is() -> None:
    weight = was_fp8(GROUPS, RANK, WIDTH)
    weight[0, 0, 0] = 1.0 + 2.0**-7
    layer = Attention(weight.clone())
    wo_a_w8.load_target(None, torch.nn.ModuleList([layer]))
    assert torch.equal(layer.matrix(), weight)
    assert not wo_a_w8.TWINS


@pytest.mark.usefixtures("_wo_a")
def test_the_drafts_wo_a_stays_unless_it_is_asked_for() -> None:
    layer = Attention(was_fp8(GROUPS, RANK, WIDTH))
    wo_a_w8.load_draft(None, torch.nn.ModuleList([layer]))
    assert not wo_a_w8.TWINS


@pytest.fixture
def _head() -> Iterator[None]:
    draft_head_fp8.most_rows.cache_clear()
    with (
        published(),
        hooked(draft_head_fp8.ADAPTER, DSV41_DRAFT_HEAD_FP8="1", DSV41_DRAFT_HEAD_FP8_MAX_M="8"),
    ):
        yield
    draft_head_fp8.most_rows.cache_clear()
    draft_head_fp8.HEADS.clear()


def head_of(rows: int) -> Any:
    torch.manual_seed(3)
    weight = torch.randn(rows, WIDTH).to(torch.bfloat16)
    return SimpleNamespace(weight=weight, quant_method=None)


@pytest.mark.usefixtures("_head")
def test_the_drafts_logits_come_from_the_twin() -> None:
    head = head_of(96)
    draft_head_fp8.attach(None, SimpleNamespace(lm_head=head))
    hidden = torch.randn(12, WIDTH).to(torch.bfloat16)
    stock = torch.matmul(hidden, head.weight.T)
    few = dspark.project_through_lm_head(hidden[:8], head)
    whole = twins.twin(head.weight.unsqueeze(0)).whole()[0]
    assert torch.equal(few, (hidden[:8].float() @ whole.float().T).to(torch.bfloat16))
    bound = hidden[:8].float().abs() @ head.weight.float().abs().T / 16
    assert ((few.float() - stock[:8].float()).abs() <= bound + 2.0**-8 * stock[:8].abs()).all()
    # more rows than it serves, and a head that is not the draft's, are the engine's
    assert torch.equal(dspark.project_through_lm_head(hidden, head), stock)
    other = head_of(96)
    assert torch.equal(
        dspark.project_through_lm_head(hidden[:8], other), torch.matmul(hidden[:8], other.weight.T)
    )


@pytest.mark.usefixtures("_head")
def test_a_head_that_blocks_do_not_cover_is_refused() -> None:
    with pytest.raises(CheckFailed, match="90x128") as caught:
        draft_head_fp8.attach(None, SimpleNamespace(lm_head=head_of(90)))
    assert caught.value.code == "D483"


class Method(Fp8LinearMethod):  # type: ignore[misc]
    """The engine's, with the product in torch: it multiplies by what the layer has by then."""

    def __init__(self) -> None:
        self.weight_block_size = [32, 32]
        self.use_marlin, self.use_mxfp8, self.block_fp8_as_mxfp8 = False, False, True
        self.mxfp8_dense_backend = Mxfp8DenseGemmBackend.FLASHINFER_CUTLASS
        self.mxfp8_prefill_autotune_min_tokens = None
        self.layer: Any = None

    def _process_mxfp8_linear_weight_scale(
        self, layer: Any, scale_u8: torch.Tensor | None = None
    ) -> None:
        layer.weight_scale_inv_swizzled = scale_u8

    def w8a8_mxfp8_linear(self, *, input: torch.Tensor, weight: torch.Tensor, **_: Any) -> Any:  # noqa: A002
        scales = self.layer.weight_scale_inv.repeat_interleave(32, 0).repeat_interleave(32, 1)
        self.seen = (tuple(input.shape), tuple(weight.shape))
        return input @ (weight.float() * scales).T


def layer_of(name: str, columns: int) -> Any:
    made = torch.Generator().manual_seed(columns)
    values = torch.randint(-8, 8, (64, columns), generator=made).float()
    return SimpleNamespace(
        prefix=f"model.layers.3.mlp.{name}",
        weight=torch.nn.Parameter(values.to(torch.float8_e4m3fn), requires_grad=False),
        weight_scale_inv=torch.nn.Parameter(
            torch.full((2, columns // 32), 2.0**-5), requires_grad=False
        ),
    )


def served(layer: Any, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
    method = Method()
    method.layer = layer
    method._prepare_block_fp8_as_mxfp8(layer)
    return method.apply(layer, x), method.seen


@pytest.mark.parametrize(
    ("name", "columns", "wide"),
    [
        ("shared_experts.down_proj", 576, 640),
        ("shared_experts.down_proj", 768, 768),
        ("shared_experts.gate_up_proj", 576, 576),
    ],
)
def test_the_shared_experts_padded_product_is_the_same(name: str, columns: int, wide: int) -> None:
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(9))
    stock, _ = served(layer_of(name, columns), x)
    with published(), hooked(shared_pad_k.ADAPTER, DSV41_SHARED_PAD_K="1"):
        layer = layer_of(name, columns)
        found, seen = served(layer, x)
    assert seen == ((5, wide), (64, wide))
    assert tuple(layer.weight_scale_inv.shape) == (2, wide // 32)
    assert torch.allclose(found, stock, rtol=0, atol=1e-5)


def test_a_layer_of_another_form_is_refused() -> None:
    with published(), hooked(shared_pad_k.ADAPTER, DSV41_SHARED_PAD_K="1"):
        layer = layer_of("shared_experts.down_proj", 576)
        layer.weight_scale_inv.data = torch.ones(2, 17)
        with pytest.raises(CheckFailed, match=r"\(2, 17\)") as caught:
            served(layer, torch.zeros(1, 576))
        assert caught.value.code == "D484"
        layer = layer_of("shared_experts.down_proj", 576)
        Method()._prepare_block_fp8_as_mxfp8(layer)
        with pytest.raises(CheckFailed, match="tuple"):
            Method().apply(layer, (torch.zeros(1, 576), torch.zeros(1)))
