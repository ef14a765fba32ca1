"""Fleet files: the three topologies parse; what cannot be true is refused by name."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv41 import fleet
from dsv41.errors import UsageError


def node_text(rank: int, fabric: list[str], *, hca: list[str] | None = None) -> str:
    devices = hca or [f"rocep1s0f{n}" for n in range(len(fabric))]
    return f"""
[[nodes]]
name = "spark{rank + 1}"
ssh = "user@10.0.0.{rank + 1}"
address = "10.0.0.{rank + 1}"
hca = {devices}
fabric = {fabric}
socket_ifname = "enP7s7"
model_dir = "/models/DeepSeek-V4.1-Flash"
rows_dir = "/var/lib/dsv41/rows"
"""


def triangle() -> str:
    """The published three-Spark cabling: 10.0.22.0/24, 10.0.23.0/24, 10.0.33.0/24."""
    ends = [
        ["10.0.22.1/24", "10.0.23.1/24"],
        ["10.0.22.2/24", "10.0.33.2/24"],
        ["10.0.23.3/24", "10.0.33.3/24"],
    ]
    return 'topology = "triangle"\n' + "".join(node_text(r, e) for r, e in enumerate(ends))


def ring(size: int) -> str:
    """One subnet per cable: rank i's port 0 to rank i+1's port 1."""
    ends = [[f"10.0.{40 + r}.1/24", f"10.0.{40 + (r - 1) % size}.2/24"] for r in range(size)]
    return 'topology = "ring"\n' + "".join(node_text(r, e) for r, e in enumerate(ends))


def switch(size: int) -> str:
    ends = [[f"10.0.40.{r + 1}/24", f"10.0.41.{r + 1}/24"] for r in range(size)]
    return 'topology = "switch"\n' + "".join(node_text(r, e) for r, e in enumerate(ends))


def refused(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        fleet.parse(text, where="fleet.toml")
    assert "fleet.toml" in caught.value.says
    return caught.value


@pytest.mark.parametrize(
    ("text", "size", "subnets"),
    [(triangle(), 3, 3), (switch(4), 4, 2), (ring(4), 4, 4), (ring(5), 5, 5), (switch(8), 8, 2)],
)
def test_topologies(text: str, size: int, subnets: int) -> None:
    parsed = fleet.parse(text, where="fleet.toml")
    assert len(parsed.nodes) == size
    assert len(fleet.cables(parsed)) == subnets
    assert parsed.nodes[0].links[0].hca == "rocep1s0f0"


def test_defaults_are_those_of_the_design() -> None:
    parsed = fleet.parse(triangle(), where="f")
    assert (parsed.container, parsed.api_host) == ("podman", "0.0.0.0")  # noqa: S104 - what is tested
    assert (parsed.api_port, parsed.master_port, parsed.control_port) == (8888, 20000, 20001)
    assert parsed.state_dir == "/var/lib/dsv41"
    assert (parsed.nodes[0].sudo, parsed.nodes[0].gid_index) == (False, None)


def test_a_node_may_have_its_own_container_engine() -> None:
    parsed = fleet.parse(triangle() + 'container = "docker"\nsudo = true\n', where="f")
    assert [parsed.container_of(rank) for rank in range(3)] == ["podman", "podman", "docker"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"triangle"', '"star"', ["topology", "'star'", "triangle, switch, ring"]),
        ('topology = "triangle"\n', "", ["topology", "missing"]),
        ('ssh = "user@10.0.0.1"\n', "", ["nodes[0].ssh", "missing"]),
        ('socket_ifname = "enP7s7"\n', "", ["nodes[0].socket_ifname", "missing"]),
        ("socket_ifname", "socket_if", ["key nodes[0].socket_if;", "known one is socket_ifname"]),
        ("hca =", "hcas =", ["unknown key nodes[0].hcas; the nearest known one is hca."]),
        ("hca =", "api_port = 8888\nhca =", ["nodes[0].api_port; it belongs to the fleet"]),
        ("hca =", "zzz = 1\nhca =", ["nodes[0].zzz; known: name, ssh"]),
        ("hca =", "reserve_gib = -5\nhca =", ["nodes[0].reserve_gib is -5", "0 to 1024"]),
        ("hca =", "reserve_gib = nan\nhca =", ["nodes[0].reserve_gib is nan"]),
        ("hca =", "memory_gib = inf\nhca =", ["nodes[0].memory_gib is inf"]),
        ("hca =", "memory_gib = 1025\nhca =", ["nodes[0].memory_gib is 1025"]),
        ("hca =", f"memory_gib = {10**400}\nhca =", ["nodes[0].memory_gib is 1000"]),
        ("hca =", "memory_gib = true\nhca =", ["nodes[0].memory_gib is True"]),
        ('"/var/lib/dsv41/rows"', "7", ["nodes[0].rows_dir", "7", "str"]),
        ('"/var/lib/dsv41/rows"', '""', ["nodes[0].rows_dir", "not empty"]),
        ("['rocep1s0f0', 'rocep1s0f1']", "'rocep1s0f0'", ["nodes[0].hca", "a list of strings"]),
        ('address = "10.0.0.1"', 'address = "127.0.0.1"', ["address", "the other nodes reach"]),
        ('address = "10.0.0.1"', 'address = "169.254.3.3"', ["address", "the other nodes reach"]),
        ("10.0.22.1/24", "10.0.22.1", ["fabric[0]", "10.0.22.1/24"]),
        ("10.0.22.1/24", "10.0.22/24", ["fabric[0]"]),
        ('topology = "triangle"', 'topology = "triangle"\napi_port = 0', ["api_port", "0"]),
        ('topology = "triangle"', 'topology = "triangle"\ncontainer = "lxc"', ["container", "lxc"]),
    ],
)
def test_wrong_keys_and_values(old: str, new: str, words: list[str]) -> None:
    error = refused(triangle().replace(old, new, 1))
    assert error.code == "D101"
    assert all(word in error.says for word in words), error.says


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (triangle().replace("spark2", "spark1"), "same name"),
        (triangle().replace('address = "10.0.0.2"', 'address = "10.0.0.1"'), "same address"),
        (
            triangle().replace("10.0.22.2/24", "10.0.99.2/24"),
            "subnet 10.0.22.0/24 is one cable and needs 2 ends, not spark1 rocep1s0f0",
        ),
        (triangle().replace(", 'rocep1s0f1']", "]", 1), "1 hca and 2 fabric"),
        (triangle().replace("'rocep1s0f1'", "'rocep1s0f0'", 1), "an hca twice"),
        (
            triangle().replace("topology", "api_port = 20000\ntopology", 1),
            "api_port 20000, master_port 20000",
        ),
        (ring(4).replace('"ring"', '"triangle"'), "3 nodes, not 4"),
        (switch(4).replace("10.0.41.3/24", "10.0.51.3/24"), "misses a node: spark3"),
        (triangle().replace('"triangle"', '"switch"'), "misses a node"),
        (switch(4).replace('"switch"', '"ring"'), "needs 2 ends"),
    ],
)
def test_contradictions(text: str, words: str) -> None:
    error = refused(text)
    assert error.code == "D102"
    assert words in error.says


def test_a_ring_out_of_rank_order_is_refused() -> None:
    head, *nodes = ring(4).split("[[nodes]]")
    nodes[1], nodes[2] = nodes[2], nodes[1]
    # spark1, spark3, spark2, spark4 in rank order: the first two have no cable
    assert (
        "no cable (subnet) joins spark1 and spark3"
        in refused("[[nodes]]".join([head, *nodes])).says
    )


def test_bounds_of_memory_belong_to_it() -> None:
    text = triangle() + "memory_gib = 1024\nreserve_gib = 0\n"
    node = fleet.parse(text, where="f").nodes[2]
    assert (node.memory_gib, node.reserve_gib) == (1024.0, 0.0)


@given(st.text(max_size=200))
def test_no_text_is_a_traceback(text: str) -> None:
    with pytest.raises(UsageError):
        fleet.parse(text, where="f")


VALUES: Any = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.lists(st.integers())
)


@given(st.sampled_from(["topology", "nodes", "api_port", "nfs_server"]), VALUES)
def test_no_value_is_a_traceback(key: str, value: Any) -> None:
    text = f"{key} = {str(value).lower() if isinstance(value, bool | int) else repr(value)}\n"
    with contextlib.suppress(UsageError):
        fleet.parse(text + triangle().replace('topology = "triangle"\n', ""), where="f")
