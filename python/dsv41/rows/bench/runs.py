"""The contenders and their runs."""

from __future__ import annotations

import mmap
import os
import resource
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dsv41.errors import Error
from dsv41.rows.abi import Library
from dsv41.rows.bench.fio import check_fio, run_fio
from dsv41.rows.bench.resident import resident_bytes, resident_pages
from dsv41.rows.build import without_crc
from dsv41.rows.core import extension, row_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from dsv41.rows.bench import Options

    Ids = NDArray[np.int64]
    Run = dict[str, Any]

POOL_THREADS = 96  # as the recipes in use set it
FRACTIONS = (0.16, 0.5, 0.85)  # unique parts of a chunk, as traces of prefills have them
DEPTH = 128  # of one ring; two rings share a large batch
LOOKUPS = 1_000_000  # of the memory run


class Bench:
    """One row file, opened by every engine; `close` ends it."""

    def __init__(self, path: Path, options: Options) -> None:
        import numpy as np  # noqa: PLC0415 - the command itself needs none

        self.np, self.path, self.options = np, path, options
        self.draw = np.random.default_rng(int.from_bytes(os.urandom(8)))
        self.made = extension().inspect(str(path))
        self.rows = self.made["local_rows"]
        self.chunk = min(options.chunk, self.rows // 32)  # of a small file that was forced
        if options.fio:
            check_fio()
        with row_errors():
            self.stores = {
                "uring": self._open("uring"),
                "aio": self._open("aio"),
                "pread96": self._open("pread", threads=POOL_THREADS),
            }
        self.held = tempfile.TemporaryDirectory()
        self._add_unchecked()
        first = self.stores["uring"].stats()
        self.drive = first["drive"]
        self.engines = {
            name: store.stats()["engine_features"] for name, store in self.stores.items()
        }
        self.weights = np.zeros((self.chunk * 2, 256), np.uint8)
        self.scales = np.zeros((self.chunk * 2, 8), np.uint8)

    def _open(self, engine: str, *, module: Any = None, **numbers: int) -> Any:
        names = ("layer", "rank", "tp", "partition")
        right = {name: self.made[name] for name in names}
        opener = (module or extension()).RowStore
        return opener.open(str(self.path), engine=engine, **right, **numbers)

    def _add_unchecked(self) -> None:
        """The same library without the check of rows; a machine without a compiler has none."""
        try:
            library = Library(without_crc(Path(self.held.name)))
        except Error:
            return
        self.stores["unchecked"] = self._open("uring", module=library)
        self.stores["checked"] = self._open("uring", module=self._same_way())

    def _same_way(self) -> Any:
        """The library as it is, by the same C interface, so that only the check differs."""
        from dsv41.rows.build import library  # noqa: PLC0415

        return Library(library())

    def close(self) -> None:
        """Close every store."""
        for store in self.stores.values():
            store.close()
        self.held.cleanup()

    def all_rounds(self, say: Callable[[str], object]) -> list[Run]:
        """Every contender in every round, each round in another order."""
        runs: list[Run] = []
        contenders = list(self._contenders())
        for number in range(self.options.rounds):
            turn = number * 5 % len(contenders)
            for shape, name, call in contenders[turn:] + contenders[:turn]:
                found = call()
                load = round(os.getloadavg()[0], 1)
                runs.append(
                    {"round": number + 1, "shape": shape, "name": name, "load": load} | found
                )
            say(f"round {number + 1} of {self.options.rounds}, load {os.getloadavg()[0]:.1f}")
        return runs

    def _contenders(self) -> Iterator[tuple[str, str, Callable[[], Run]]]:
        burst, chunk = self.options.burst, self.chunk
        for shape, count in (("burst", burst), ("chunk", chunk)):
            for name in self.stores:
                yield shape, name, partial(self._lookups, name, count)
            yield shape, "two-read", partial(self._lookups, "uring", count, halves=2)
            if self.options.fio:
                yield shape, "fio", partial(self._fio, shape)
        for fraction in FRACTIONS:
            yield (
                "chunk",
                f"unique {fraction}",
                partial(self._lookups, "uring", chunk, fraction=fraction),
            )

    def _fio(self, shape: str) -> Run:
        burst = shape == "burst"
        depth = self.options.burst if burst else 2 * DEPTH
        return run_fio(self.path, depth=depth, burst=burst, seconds=self.options.seconds)

    def _ids(self, count: int, *, fraction: float, halves: int) -> Ids:
        """`count` ids of which a fraction is distinct; `halves` = 2: each row has a second page."""
        np, distinct = self.np, max(1, round(count * fraction))
        span = self.rows // halves
        some = np.unique(self.draw.integers(0, span, distinct + distinct // 8 + 8))
        some = cast("Ids", self.draw.permutation(some)[:distinct])
        if halves == 2:
            return cast("Ids", np.concatenate([some, some + span]))
        if fraction == 1:
            return some
        return cast("Ids", self.draw.permutation(np.resize(some, count)))

    def _lookups(self, name: str, count: int, *, fraction: float = 1, halves: int = 1) -> Run:
        """Lookups for some seconds; rows per second counts rows asked for, not reads."""
        store, seconds = self.stores[name], self.options.seconds
        calls = 400 if count < 1000 else 8
        ids = [self._ids(count, fraction=fraction, halves=halves) for _ in range(calls)]
        weights, scales = self.weights[: count * halves], self.scales[: count * halves]
        before, cpu = store.stats(), _cpu()
        began, done, times = time.perf_counter(), 0, []
        while (now := time.perf_counter()) - began < seconds:
            store.lookup(ids[done % calls], weights, scales)
            times.append(time.perf_counter() - now)
            done += 1
        took, used, after = time.perf_counter() - began, _cpu() - cpu, store.stats()
        self._check(ids[(done - 1) % calls], weights, scales)
        return {
            "rows": done * count,
            "seconds": took,
            "cpu_seconds": used,
            "reads": after["device_reads"] - before["device_reads"],
            "unique": after["unique"] - before["unique"],
            "p50_us": round(sorted(times)[len(times) // 2] * 1e6),
            "p99_us": round(sorted(times)[len(times) * 99 // 100] * 1e6),
        }

    def _check(self, ids: Ids, weights: Any, scales: Any) -> None:
        """Hold up to 512 rows to what they are made of; rows of a real file have their CRC."""
        if self.made["source"]["file"] != "made":
            return
        np = self.np
        x = (ids[:512, None].astype(np.uint64) * np.uint64(33)) + np.arange(33, dtype=np.uint64)
        x += np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        right = (x ^ (x >> np.uint64(31))).view(np.uint8).reshape(len(x), 264)
        found = np.concatenate([weights[: len(x)], scales[: len(x)]], axis=1)
        if not (found == right).all():
            raise Error("D473", f"{self.path} gave wrong rows.", fix="check memory and drive")

    def memory(self) -> dict[str, int]:
        """Growth of page cache (of the file) and of this process over a million lookups."""
        count = self.chunk
        ids = self._ids(count, fraction=1, halves=1)
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as seen:
            cached, own = resident_pages(seen), resident_bytes()
            store = self._open("uring")
            for _ in range(-(-LOOKUPS // count)):
                store.lookup(ids, self.weights[:count], self.scales[:count])
                ids = (ids + 4_999_999) % self.rows
            grown, larger = resident_pages(seen) - cached, resident_bytes() - own
            store.close()
        return {"lookups": LOOKUPS, "page_cache_bytes": grown * 4096, "rss_bytes": larger}


def _cpu() -> float:
    """Processor seconds of this process, all threads, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
