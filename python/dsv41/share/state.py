"""What a node has of a share now: read by one shell script, changed by nothing here."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv41.errors import CheckFailed
from dsv41.share.texts import EXPORTS, UNITS, unit_name

if TYPE_CHECKING:
    from dsv41.fleet import Node
    from dsv41.host.reach import Host

# exporters that other launchers start, in a container on the host's network (MIA start.sh)
EXPORTERS = ("vllm-fn-nfs", "glm53-nfs", "dsv41-nfs")
_MARK = "@@dsv41 "
# listing a mounted folder would wait for its server: only an unmounted one is listed
_SCRIPT = r"""PATH=$PATH:/usr/sbin:/sbin; export PATH
say() { printf '\n@@dsv41 %s\n' "$1"; }
say uid; id -u
say os; cat /etc/os-release
say tools; for tool in systemctl exportfs mount.nfs4; do command -v "$tool"; done
say exports; cat "$exports"
say others; for f in /etc/exports /etc/exports.d/*.exports; do
  [ "$f" = "$exports" ] || grep -hv '^[[:space:]]*#' "$f"
done
say live; cat /var/lib/nfs/etab
say server; systemctl is-active nfs-server; systemctl is-enabled nfs-server
say mount; cat "$unit.mount"
say automount; cat "$unit.automount"
name=${unit##*/}.automount
say automount-state; systemctl is-active "$name"; systemctl is-enabled "$name"
at() { awk -v d="$folder" '$1 !~ /^#/ && $2 == d && $3 != "autofs" { print $1, $3, $4 }' "$1"; }
say mounted; at /proc/self/mounts
say fstab; at /etc/fstab
say folder; if awk -v d="$folder" '$2 == d { found = 1 } END { exit !found }' /proc/self/mounts
then echo mounted; elif [ -d "$folder" ]; then echo there; ls -A "$folder" | head -n 3; fi
for engine in podman docker; do
  command -v $engine > /dev/null || continue
  for name in $($engine ps --format '{{.Names}}'); do case $name in EXPORTERS)
    say exporter; echo "$engine $name"
    $engine inspect --format '{{range .Mounts}}{{.Source}} {{.Destination}}|{{end}}' "$name"
    $engine exec "$name" cat /etc/exports;;
  esac; done
done
say end
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exporter:
    """A running exporter container: `inside` is where it has the checkpoint, None if nowhere."""

    engine: str
    name: str
    inside: str | None
    exports: str


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """One node. Texts of files that are not there are empty."""

    node: str
    uid: int
    nixos: bool
    tools: frozenset[str]
    exports: str
    other_roots: tuple[str, ...]  # lines of other exports with fsid=0
    live: frozenset[str]  # clients that the running server has for the folder
    server: tuple[str, ...]  # active, enabled
    mount: str
    automount: str
    automount_state: tuple[str, ...]
    mounted: tuple[str, str, str] | None  # source, type, options
    fstab: tuple[str, str, str] | None
    folder: str  # absent, mounted, empty or full
    exporter: Exporter | None


def script(node: Node) -> str:
    """What is run on the node, as root."""
    values = {
        "exports": EXPORTS,
        "folder": node.model_dir,
        "unit": f"{UNITS}/{unit_name(node.model_dir)}",
    }
    given = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    return given + _SCRIPT.replace("EXPORTERS", "|".join(EXPORTERS))


def read(host: Host, node: Node) -> State:
    """The state of a node; CheckFailed D462 when it cannot be read whole."""
    done = host.run(["sh", "-c", script(node)], sudo=True, seconds=60)
    if f"{_MARK}end" not in done.stdout:
        raise CheckFailed(
            "D462",
            f"{node.name} did not tell what it shares: {done.last_word}.",
            fix=f"set sudo = true for {node.name}, and let its user run sudo without a password",
        )
    return parse(done.stdout, node)


def parse(text: str, node: Node) -> State:
    """The State that the script printed."""
    found = {
        name.strip(): body.strip("\n")
        for name, _, body in (part.partition("\n") for part in text.split(f"\n{_MARK}")[1:])
    }
    others = [
        line for line in found["others"].splitlines() if re.search(r"\bfsid=(0|root)\b", line)
    ]
    return State(
        node=node.name,
        uid=int(found["uid"]),
        nixos=re.search(r"^ID=\"?nixos\"?$", found["os"], re.MULTILINE) is not None,
        tools=frozenset(path.rsplit("/", 1)[-1] for path in found["tools"].split()),
        exports=found["exports"],
        other_roots=tuple(others),
        live=frozenset(_live(found["live"], node.model_dir)),
        server=tuple(found["server"].split()),
        mount=found["mount"],
        automount=found["automount"],
        automount_state=tuple(found["automount-state"].split()),
        mounted=_mount(found["mounted"]),
        fstab=_mount(found["fstab"]),
        folder=_folder(found["folder"].splitlines()),
        exporter=_exporter(found.get("exporter"), node.model_dir),
    )


def _folder(lines: list[str]) -> str:
    if not lines:
        return "absent"
    return "mounted" if lines[0] == "mounted" else "full" if lines[1:] else "empty"


def _live(etab: str, folder: str) -> list[str]:
    """The clients of a folder in the table of the running server: FOLDER<TAB>CLIENT(options)."""
    lines = (line.split() for line in etab.splitlines())
    return [words[1].split("(")[0] for words in lines if len(words) > 1 and words[0] == folder]


def _mount(text: str) -> tuple[str, str, str] | None:
    words = (text.splitlines() or [""])[-1].split()
    return (words[0], words[1], words[2]) if len(words) == 3 else None


def _exporter(text: str | None, folder: str) -> Exporter | None:
    if text is None:
        return None
    first, mounts, *lines = [*text.splitlines(), "", ""]
    engine, name = first.split()
    pairs = [pair.split() for pair in mounts.split("|") if len(pair.split()) == 2]
    inside = next((target for source, target in pairs if source == folder), None)
    exports = "\n".join(line for line in lines if line.strip() and not line.startswith("#"))
    return Exporter(engine=engine, name=name, inside=inside, exports=exports)
