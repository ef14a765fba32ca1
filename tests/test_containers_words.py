"""What is asked of podman and docker about images and containers, and what they answer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dsv41 import containers, images
from dsv41.errors import CheckFailed, Unsafe
from dsv41.host.reach import LOCAL, Host
from dsv41.images import oci, sources, store

DIGEST = "sha256:" + "ab" * 32
NAME = f"localhost/dsv41/tp3@{DIGEST}"


def test_the_words_differ_where_the_programs_do() -> None:
    assert containers.presence("podman") == ["podman", "version", "--format", "{{.Client.Version}}"]
    # docker's client answers without its daemon
    assert containers.presence("docker")[-1] == "{{.Server.Version}}"
    assert containers.storage("podman")[-1] == "{{.Store.GraphRoot}}"
    assert containers.storage("docker")[-1] == "{{.DockerRootDir}}"
    inspect = ["container", "inspect", "--format", "{{json .State}}", "dsv41-rank0"]
    assert containers.state("docker", "dsv41-rank0") == ["docker", *inspect]
    # docker kills at once and has no such flag
    assert containers.removed("docker", "n") == ["docker", "rm", "--force", "n"]
    assert containers.removed("podman", "n") == ["podman", "rm", "--force", "--time", "0", "n"]


def test_the_state_of_a_container() -> None:
    # `podman container inspect` 4.3.1 of one that ended by TERM, shortened
    text = (
        '{"OciVersion":"1.0.2-dev","Status":"exited","Running":false,"Paused":false,"OOMKilled":'
        'true,"Dead":false,"Pid":0,"ExitCode":143,"StartedAt":"2026-11-30T06:00:00.1Z"}'
    )
    found = containers.read_state(text)
    assert (found.running, found.exit_code, found.killed_for_memory) == (False, 143, True)
    assert found.started_at == "2026-11-30T06:00:00.1Z"
    for bad in ("", "null", "{}", "[1]"):
        with pytest.raises(ValueError, match=r".+"):
            containers.read_state(bad)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.5GiB / 119.1GiB", 1_610_612_736),
        ("512KiB / 1GiB", 524_288),
        ("77.82kB / 25.2GB", 77_820),
        ("2.5GB / 25.2GB\n", 2_500_000_000),
        ("0B / 0B", 0),
    ],
)
def test_memory_in_both_units(text: str, expected: int) -> None:
    assert containers.read_memory(text) == expected
    with pytest.raises(ValueError, match="no use of memory"):
        containers.read_memory("-- / --")


def test_the_tag_is_of_the_digest() -> None:
    assert containers.tagged(NAME) == "localhost/dsv41/tp3:abababababab"
    there = f"registry.example:5000/group/r:old@{DIGEST}"
    assert containers.tagged(there) == "registry.example:5000/group/r:abababababab"


def image_of(folder: Path) -> oci.Image:
    """An image of one layer in an OCI folder."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer, config = b"layer", b'{"rootfs":{"diff_ids":[]}}'
    kinds = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "size": len(layer)}
    manifest = oci.compact(
        {
            "schemaVersion": 2,
            "config": {"digest": oci.digest_of(config), "size": len(config)},
            "layers": [{**kinds, "digest": oci.digest_of(layer)}],
        }
    )
    for data in (layer, config, manifest):
        (blobs / oci.digest_of(data)[7:]).write_bytes(data)
    index = {"manifests": [{"digest": oci.digest_of(manifest)}]}
    (folder / "index.json").write_text(json.dumps(index))
    return sources.from_folder(folder, oci.digest_of(manifest))


def test_a_folder_is_judged_by_its_hashes(tmp_path: Path) -> None:
    image = image_of(tmp_path)
    assert [layer.size for layer in image.layers] == [5]
    blobs = tmp_path / "blobs" / "sha256"
    (blobs / image.layers[0].hex).write_bytes(b"longer than it was")
    with pytest.raises(CheckFailed, match="expected 5") as caught:
        sources.from_folder(tmp_path, image.digest)
    assert caught.value.code == "D415"
    (blobs / image.layers[0].hex).unlink()
    with pytest.raises(CheckFailed, match="is not there"):
        sources.from_folder(tmp_path, image.digest)
    (blobs / image.config_digest[7:]).write_bytes(b"{}")
    with pytest.raises(CheckFailed, match="its config has SHA-256"):
        sources.from_folder(tmp_path, image.digest)
    with pytest.raises(CheckFailed, match=image.digest) as caught:
        sources.from_folder(tmp_path, DIGEST)
    assert caught.value.code == "D414"
    for given in (str(tmp_path / "absent"), str(tmp_path / "index.json")):
        with pytest.raises(CheckFailed, match="D415"):
            sources.find(given, wanted=DIGEST, name="tp3", kept=tmp_path)


# what docker without containerd's image store knows: an ID, which is the config's digest
DOCKER = """#!/bin/sh
[ "$1 $2" = "image inspect" ] || exit 9
case "$3" in {known}) echo '[{{"Id":"{known}","RepoDigests":[]}}]';; *) exit 1;; esac
"""


def test_docker_knows_an_image_by_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = image_of(tmp_path / "images")
    target = images.Target(
        host=Host(name="spark1", destination=LOCAL),
        program="docker",
        folder=str(tmp_path / "images"),
        reference=f"localhost/dsv41/tp3@{image.digest}",
    )
    program = tmp_path / "docker"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for known, expected in ((image.config_digest, image.config_digest), (DIGEST, None)):
        program.write_text(DOCKER.format(known=known))
        program.chmod(0o755)
        assert images.known_as(target) == expected
    with pytest.raises(Unsafe, match="D419"):
        images.require(target)
    with pytest.raises(CheckFailed, match="spark1: docker cannot be used") as caught:
        images.require_engine(target.host, "docker")
    assert (caught.value.code, "podman" in caught.value.fix) == ("D410", True)
    # a manifest that was changed in the folder names no config that counts
    (Path(target.folder) / "blobs" / "sha256" / image.digest[7:]).write_bytes(b"{}")
    program.write_text(DOCKER.format(known=image.config_digest))
    assert images.known_as(target) is None


def test_an_archive_for_docker_names_its_layers_in_order(tmp_path: Path) -> None:
    image = image_of(tmp_path / "source")
    host, folder = Host(name="spark1", destination=LOCAL), str(tmp_path / "node")
    store.held(host, folder)
    for blob in image.layers:
        store.send(host, folder, blob, have=0, moved=lambda _: None)
    store.write(host, folder, image, reference=NAME, name=containers.tagged(NAME))
    (entry,) = json.loads((tmp_path / "node" / "manifest.json").read_text())
    assert entry == {
        "Config": f"blobs/sha256/{image.config_digest[7:]}",
        "RepoTags": ["localhost/dsv41/tp3:abababababab"],
        "Layers": [f"blobs/sha256/{image.layers[0].hex}"],
    }
    for name in store.members(image):
        assert (tmp_path / "node" / name).is_file()
    assert sources.from_folder(Path(folder), image.digest).layers[0].size == 5
