"""vLLM's adapters without vLLM: columns and their order, what is left unread, what is refused."""

from __future__ import annotations

import asyncio
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

from dsv41.adapters import table
from dsv41.adapters.keygate import KeyGate
from dsv41.adapters.vllm import api_keys, engram_ahead, engram_nvme, sm12_pages
from dsv41.adapters.vllm.columns import gathered_order, own_columns
from dsv41.adapters.vllm.engram_nvme import check_ready, restore_columns, skip_tables
from dsv41.adapters.vllm.refused import check_config, check_switches
from dsv41.errors import CheckFailed, UsageError
from dsv41.geometry import REAL_ENGRAM, column_owners, partition

DIVISORS = (1, 2, 3, 4, 6, 8, 12, 24)
BY_COLUMNS = ("contiguous-columns", "strided", "weighted")


@pytest.mark.parametrize("name", BY_COLUMNS)
@pytest.mark.parametrize("tp", DIVISORS)
def test_columns_come_back_in_order(name: str, tp: int) -> None:
    owners = column_owners(name, engram=REAL_ENGRAM, tp=tp)
    whole = torch.arange(5 * 24 * 2).view(5, 24, 2)
    ranks = [whole[:, own_columns(owners, rank=rank)] for rank in range(tp)]
    assert {part.shape[1] for part in ranks} == {24 // tp}  # as the engine gathers them
    order = gathered_order(owners, tp=tp)
    buffer = None if order is None else torch.tensor(order)
    layer = SimpleNamespace(embed_tokens=SimpleNamespace(order=buffer))
    assert torch.equal(restore_columns(torch.cat(ranks, 1), layer, "hash_ids"), whole)
    if name == "contiguous-columns":
        assert order is None


def test_the_order_of_the_published_recipe() -> None:
    # balanced columns at four ranks: perm[c] = (c mod tp) * part + c div tp
    owners = column_owners("strided", engram=REAL_ENGRAM, tp=4)
    assert gathered_order(owners, tp=4) == [(c % 4) * 6 + c // 4 for c in range(24)]


@pytest.mark.parametrize("name", BY_COLUMNS)
def test_a_rank_has_the_rows_of_its_columns(name: str) -> None:
    owners = column_owners(name, engram=REAL_ENGRAM, tp=3)
    rows = partition(name, engram=REAL_ENGRAM, layer_id=14, tp=3)
    for rank in range(3):
        for column in own_columns(owners, rank=rank):
            assert rows.owner(REAL_ENGRAM.offsets(14)[column]) == rank


def test_what_cannot_be_put_back() -> None:
    # five ranks gather 5 columns each and cut the end off: only the engine's own rule fits
    assert (
        gathered_order(column_owners("contiguous-columns", engram=REAL_ENGRAM, tp=5), tp=5) is None
    )
    with pytest.raises(UsageError, match=r"D159 .*24 hash columns"):
        gathered_order(column_owners("strided", engram=REAL_ENGRAM, tp=5), tp=5)


def test_another_engines_table_is_left_alone() -> None:
    rows = torch.zeros(2, 24, 4)
    assert restore_columns(rows, SimpleNamespace(embed_tokens=object()), "ids") is rows


def test_the_loader_reads_no_table() -> None:
    asked = []

    def original(name: str, local: set[int] | None) -> bool:
        asked.append((name, local))
        return "experts.3" in name

    for layer in (1, 14):
        for part in ("weight", "scale"):
            assert skip_tables(original, f"layers.{layer}.engram.embed.{part}", None)
    assert not asked
    assert not skip_tables(original, "layers.1.engram.wkv.weight", None)
    assert skip_tables(original, "layers.1.ffn.experts.3.w1.weight", {1})
    assert not skip_tables(original, "embed.weight", None)


def config(**change: Any) -> Any:
    parallel: dict[str, Any] = {"data_parallel_size": 1, "use_ubatching": False}
    load: dict[str, Any] = {
        "load_format": "auto",
        "safetensors_load_strategy": None,
        "model_loader_extra_config": {},
    }
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{k: change.get(k, v) for k, v in parallel.items()}),
        load_config=SimpleNamespace(**{k: change.get(k, v) for k, v in load.items()}),
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data_parallel_size": 2}, "--data-parallel-size above 1"),
        ({"use_ubatching": True}, "--enable-dbo"),
        ({"load_format": "instanttensor"}, "--load-format instanttensor"),
        ({"safetensors_load_strategy": "prefetch"}, "--safetensors-load-strategy prefetch"),
        ({"safetensors_load_strategy": "eager"}, "--safetensors-load-strategy eager"),
        ({"model_loader_extra_config": {"enable_multithread_load": True}}, "multithread"),
    ],
)
def test_what_would_read_tables_or_other_ranks(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=f"D158 .*{says}"):
        check_config(config(**change))
    check_config(config())
    check_config(config(safetensors_load_strategy="lazy", load_format="safetensors"))


@pytest.mark.parametrize(
    "name", ["DSV41_ENGRAM_CHECK", "DSV41_RESIDENT_SCALES", "DSV41_ENGRAM_PREFETCH"]
)
def test_switches_of_the_other_engine(name: str) -> None:
    check_switches({name: "0", "DSV41_PACKED_DIR": "/rows"})
    with pytest.raises(UsageError, match=rf"D158 .*{name}"):
        check_switches({name: "1", "DSV41_PACKED_DIR": "/rows"})


class FakeLayer(torch.nn.Module):
    """What stands in for the engine's Engram layer."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.embed_tokens = table


class OurTable(torch.nn.Module):
    def __init__(self, rows: int = 0) -> None:
        super().__init__()
        self.weight = torch.empty(rows, 256)
        self.read = 0

    def read_ends(self) -> None:
        self.read += 1


def ready(monkeypatch: pytest.MonkeyPatch, *tables: torch.nn.Module) -> None:
    module = SimpleNamespace(Engram=FakeLayer)
    monkeypatch.setitem(sys.modules, engram_nvme.ENGRAM, module)
    monkeypatch.setattr(engram_nvme, "embedding_class", lambda: OurTable)
    model = torch.nn.ModuleList([torch.nn.Linear(1, 1), *map(FakeLayer, tables)])
    check_ready(SimpleNamespace(model_runner=SimpleNamespace(get_model=lambda: model)))


def test_rows_are_read_before_graphs_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = OurTable(), OurTable()
    ready(monkeypatch, *tables)
    assert [table.read for table in tables] == [1, 1]


def test_a_table_in_memory_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckFailed, match=r"D160 .*OurTable holds 7 rows"):
        ready(monkeypatch, OurTable(), OurTable(rows=7))


def test_another_table_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckFailed, match=r"D160 .*Embedding holds 3 rows"):
        ready(monkeypatch, torch.nn.Embedding(3, 2))


def test_no_engram_layer_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckFailed, match=r"D160 .*no Engram layer"):
        ready(monkeypatch)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text("sk-one\nsk-two\n")
    return path


def test_keys_go_in_front_of_the_app(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV41_API_KEY_FILE", str(key_file))
    app = Starlette()
    api_keys.gate(None, SimpleNamespace(api_key=None), app, ("generate",))
    # as vLLM's build_app goes on: the SageMaker library puts a layer of its own before all others
    reached: list[str] = []

    async def throttle(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await PlainTextResponse("passed")(scope, receive, send)

    app.user_middleware.insert(0, Middleware(lambda app: app and throttle))
    app.middleware_stack = app.build_middleware_stack()
    assert isinstance(app.middleware_stack, KeyGate)
    assert status_of(app, "/v1/models") == 401
    assert reached == []
    assert status_of(app, "/v1/models", (b"authorization", b"Bearer sk-two")) == 200
    assert reached == ["/v1/models"]


def status_of(app: Any, path: str, *headers: tuple[bytes, bytes]) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody reads the body")

    scope = {"type": "http", "method": "GET", "path": path, "headers": list(headers)}
    asyncio.run(app(scope, receive, send))
    return int(sent[0]["status"])


def test_a_file_that_went_bad_ends_the_engine(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSV41_API_KEY_FILE", str(key_file))
    api_keys.check({"DSV41_API_KEY_FILE": str(key_file)})
    key_file.chmod(0o644)
    with pytest.raises(SystemExit, match=r"dsv41: D071 .*\ndsv41: to mend it: chmod 600"):
        api_keys.gate(None, SimpleNamespace(api_key=None), Starlette(), ())


def test_the_grpc_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (hook,) = [hook for hook in api_keys.ADAPTER.hooks if hook.kind == "before"]
    assert hook.target == "vllm.v1.engine.async_llm.AsyncLLM.from_vllm_config"
    assert hook.call(object, vllm_config=None) is None
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vllm.entrypoints.launchers.grpc_server", ModuleType("x"))
        with pytest.raises(SystemExit, match=r"D161 .*--grpc"):
            hook.call(object, vllm_config=None)
    spec = ModuleSpec("vllm.entrypoints.launchers.grpc_server", None)  # python -m
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    with pytest.raises(SystemExit, match=r"D161 .*--grpc"):
        hook.call(object, vllm_config=None)


@pytest.mark.parametrize(
    ("environ", "code"),
    [
        ({"VLLM_API_KEY": "sk-x"}, "D161 .*VLLM_API_KEY"),
        ({"VLLM_USE_RUST_FRONTEND": "1"}, "D161 .*RUST"),
        ({"DSV41_API_KEY_FILE": "/nowhere/keys"}, "D070"),
    ],
)
def test_what_does_not_go_with_keys(key_file: Path, environ: dict[str, str], code: str) -> None:
    with pytest.raises(UsageError, match=code) as found:
        api_keys.check({"DSV41_API_KEY_FILE": str(key_file)} | environ)
    assert "sk-x" not in str(found.value)
    api_keys.check({"DSV41_API_KEY_FILE": str(key_file), "VLLM_USE_RUST_FRONTEND": "0"})


def test_keys_in_the_argument_list_are_refused(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSV41_API_KEY_FILE", str(key_file))
    with pytest.raises(SystemExit, match=r"D161 .*--api-key") as found:
        api_keys.gate(None, SimpleNamespace(api_key=["sk-x"]), SimpleNamespace(), ())
    assert "sk-x" not in str(found.value)


@pytest.mark.parametrize(("ratio", "tokens"), [(1, 64), (2, 128)])
def test_index_pages_hold_64_states_on_sm12(
    monkeypatch: pytest.MonkeyPatch, ratio: int, tokens: int
) -> None:
    monkeypatch.setattr(sm12_pages, "_on_sm12", lambda: True)
    spec = SimpleNamespace(tokens_per_state=ratio)
    assert sm12_pages.index_blocks([128], spec) == [tokens]
    assert sm12_pages.index_blocks([128], kv_cache_spec=spec) == [tokens]
    common = set(sm12_pages.attention_blocks([128])) & {tokens}
    assert common == {tokens}
    assert 128 in sm12_pages.index_blocks([128])


def test_pages_elsewhere_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sm12_pages, "_on_sm12", lambda: False)
    assert sm12_pages.index_blocks([64], SimpleNamespace(tokens_per_state=1)) == [64]
    assert sm12_pages.attention_blocks([128]) == [128]


def test_all_are_in_the_table() -> None:
    assert table.VLLM == (
        engram_nvme.ADAPTER,
        engram_ahead.ADAPTER,
        sm12_pages.ADAPTER,
        api_keys.ADAPTER,
    )
