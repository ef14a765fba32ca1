"""Fleet files: the three topologies parse; what cannot be true is refused by name."""

import contextlib
import re
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
        ('"/var/lib/dsv41/rows"', "7", ["nodes[0].rows_dir is 7", "a string that is not empty"]),
        ("hca =", "sudo = 1\nhca =", ["nodes[0].sudo is 1; allowed: true or false."]),
        ("hca =", 'gid_index = "3"\nhca =', ["nodes[0].gid_index is '3'; allowed: an integer."]),
        ("hca =", 'memory_gib = "9"\nhca =', ["nodes[0].memory_gib is '9'; allowed: a number."]),
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
        (
            triangle().replace("spark2", "spark1"),
            "nodes[0] (spark1) and nodes[1] (spark1) have the same name, spark1.",
        ),
        (
            triangle().replace('address = "10.0.0.3"', 'address = "10.0.0.1"'),
            "nodes[0] (spark1) and nodes[2] (spark3) have the same address, 10.0.0.1.",
        ),
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


WRONG_FORMS: dict[str, list[Any]] = {
    "ssh": [
        "-oProxyCommand=touch x",
        "me; rm -rf @10.0.0.2",
        "me@-oProxyCommand=x",
        "-l@10.0.0.1",
        "me@10.0.0.1 -v",
        "$(id)@10.0.0.1",
        "me@",
        "ssh://-x@10.0.0.1",
        "ssh://10.0.0.1:22:23",
        "user@10.0.0.1\\n",
    ],
    "name": ["../x", "a/b", ".hidden", "-v", "spark 1", "s" * 65],
    "socket_ifname": ["eth 0", "a/b", "eth0,eth1", "^docker0", "=eth0", "e" * 16, "-"],
    "hca": ["mlx5 0", "^mlx5_0", "mlx5_0,mlx5_1", "../mlx5_0"],
    "address": ["10.0.0", "10.0.0.256", "ba nana", "-x", "::1", "0.0.0.0"],  # noqa: S104 - refused
    "fabric": ["10.0.22.1", "10.0.22.1/32", "banana"],
    "gid_index": [99_999, 256, -1],
    "api_host": ["banana", "0.0.0", "10.0.0.1:8888", "a b.c", "-x.y"],
    "nfs_server": ["10.0.0", "a b", "-o", "10.0.0.1:/models"],
}
RIGHT_FORMS: dict[str, list[Any]] = {
    "ssh": [
        "local",
        "spark1",
        "spark_1.lan",
        "user@10.0.0.1",
        "first.last@spark1.example.org",
        "root@fe80::1%enP7s7",
        "ssh://spark@127.0.0.1:2222",
        "ssh://[fd00::1]:22",
        "DOMAIN+user@spark1",
    ],
    "name": ["spark1", "gx10-a1b2", "spark_1.lan", "1"],
    "socket_ifname": ["enP7s7", "eth1", "wlP9s9", "bond0.100", "br-0123456789ab"],
    "hca": ["mlx5_0", "rocep1s0f0", "roceP2p1s0f1", "mlx5_0:1"],
    "address": ["10.0.0.9", "fd00::1", "spark9.lan", "spark9"],
    "fabric": ["10.0.22.1/24"],
    "gid_index": [0, 3, 255],
    "api_host": ["0.0.0.0", "::", "127.0.0.1", "localhost", "10.0.0.1", "spark1.lan"],  # noqa: S104 - read, not bound
    "nfs_server": ["10.0.0.1", "fd00::1", "spark1", "nas.lan"],
}


def with_value(field: str, value: Any) -> str:
    """The triangle's first node, or the fleet, with one value."""
    if field in ("api_host", "nfs_server"):
        return f'{field} = "{value}"\n' + triangle()
    if field == "gid_index":
        return triangle().replace("hca =", f"gid_index = {value}\nhca =", 1)
    old = {"hca": "'rocep1s0f0'", "fabric": "'10.0.22.1/24'"}.get(field)
    if old:
        return triangle().replace(old, f"'{value}'", 1)
    return re.sub(f'(?m)^{field} = ".*"$', lambda _: f'{field} = "{value}"', triangle(), count=1)


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, vs in WRONG_FORMS.items() for v in vs])
def test_a_value_of_another_form_is_refused(field: str, value: Any) -> None:
    """ssh takes a destination with a dash for an option; NCCL reads ^ and , in an interface."""
    error = refused(with_value(field, value))
    assert error.code == "D101"
    assert f"{field} is " in error.says or f"{field}[0] is " in error.says


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, vs in RIGHT_FORMS.items() for v in vs])
def test_a_value_of_its_form_is_taken(field: str, value: Any) -> None:
    parsed = fleet.parse(with_value(field, value), where="f")
    found = getattr(parsed if hasattr(parsed, field) else parsed.nodes[0], field)
    assert value in (found, *(found if isinstance(found, tuple) else ()))


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
