"""What differs between two Plans, word by word; a change that all ranks share is said once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dsv41.plan import Plan, Rank

EVERYWHERE = "all ranks"
_WHOLE = ("profile", "engine", "url", "state_dir", "api_key_file")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One difference: where (the Plan, all ranks or one), of what kind, and both values."""

    where: str
    kind: str
    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        """One line; what is absent is a dash."""
        before, after = ("-" if v is None else v for v in (self.before, self.after))
        return f"{self.where}: {self.kind} {self.name}: {before} -> {after}"


def changes(before: Plan, after: Plan) -> list[Change]:
    """Everything that differs, the Plan's own fields first."""
    found = [
        Change(
            where="plan",
            kind="field",
            name=name,
            before=_word(getattr(before, name)),
            after=_word(getattr(after, name)),
        )
        for name in _WHOLE
        if getattr(before, name) != getattr(after, name)
    ]
    ranks = range(max(len(before.ranks), len(after.ranks)))
    per_rank = {
        rank: list(_rank_changes(_get(before, rank), _get(after, rank), rank)) for rank in ranks
    }
    return [*found, *_merged(per_rank)]


def _get(made: Plan, rank: int) -> Rank | None:
    return made.ranks[rank] if rank < len(made.ranks) else None


def _word(value: object) -> str | None:
    return None if value is None else str(value)


def _merged(per_rank: Mapping[int, list[Change]]) -> Iterator[Change]:
    """A change that is on every rank alike, once; the others as they are."""
    seen: set[tuple[str, str, str | None, str | None]] = set()
    for changes_here in per_rank.values():
        for change in changes_here:
            key = (change.kind, change.name, change.before, change.after)
            same = [any(_key(c) == key for c in others) for others in per_rank.values()]
            if all(same) and len(per_rank) > 1:
                if key not in seen:
                    yield Change(
                        **{**asdict(change), "where": EVERYWHERE},
                    )
                seen.add(key)
            else:
                yield change


def _key(change: Change) -> tuple[str, str, str | None, str | None]:
    return change.kind, change.name, change.before, change.after


def _rank_changes(before: Rank | None, after: Rank | None, rank: int) -> Iterator[Change]:
    old, new = _parts(before), _parts(after)
    for kind, name in sorted(old.keys() | new.keys()):
        one, other = old.get((kind, name)), new.get((kind, name))
        if one != other:
            yield Change(where=f"rank {rank}", kind=kind, name=name, before=one, after=other)


def _parts(rank: Rank | None) -> dict[tuple[str, str], str]:
    """Everything of a rank as (kind, name) -> value."""
    if rank is None:
        return {}
    found = {("rank", "node"): rank.node, ("rank", "role"): rank.role}
    found["rank", "image"] = rank.image or "none"
    found |= {("env", name): value for name, value in rank.env.items()}
    found |= {("argv", name): value for name, value in _flags(rank.argv)}
    found |= {("mount", mount.split(":")[1]): mount for mount in rank.mounts}
    found |= {("option", option): "there" for option in rank.options}
    found |= {("ledger", item.item): str(item.bytes) for item in rank.ledger}
    return found


def _flags(argv: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each flag with the words that follow it; the words before the first flag are the program."""
    name, words = "program", [argv[0]]
    for word in argv[1:]:
        if word.startswith("--"):
            yield name, " ".join(words) or "there"
            name, words = word, []
        else:
            words.append(word)
    yield name, " ".join(words) or "there"


def document(found: list[Change]) -> list[dict[str, Any]]:
    """The changes as JSON objects."""
    return [asdict(change) for change in found]
