"""What a rank does once its command line is understood: load, join, then lead or follow."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

import torch

from dsv41.geometry import Shard
from dsv41.local import serving
from dsv41.local.engine.assembly import Parts, Peers, assemble
from dsv41.local.engine.loop import Engine, step_failed
from dsv41.local.engine.row_lines import RowLines
from dsv41.local.http.server import create_app
from dsv41.local.http.settings import Settings
from dsv41.local.model.comm import Alone
from dsv41.switches import read

if TYPE_CHECKING:
    import argparse
    import socket

    from dsv41.local.engine.assembly import Assembled
    from dsv41.local.http.keys import Keys
    from dsv41.local.model.comm import Comm
    from dsv41.local.stopping import StopSignals

log = logging.getLogger("dsv41")


def run(
    options: argparse.Namespace,
    signals: StopSignals,
    *,
    listener: socket.socket | None,
    keys: Keys | None,
) -> int:
    """Load, join, then serve at `listener` or follow; give the exit status."""
    torch.set_num_threads(1)
    shard = Shard(rank=options.rank, tp=options.world)
    parts = Parts(
        shard=shard,
        checkpoint=options.checkpoint,
        rows=options.rows,
        partition=options.partition,
        layout=options.layout,
        row_engine=options.row_engine,
        slots=options.slots,
        context=options.context,
        ahead=read(os.environ, "engram_prefetch") != 0,
    )

    def join() -> Comm:
        if shard.tp == 1:
            return Alone()
        return Peers(
            options.master,
            shard=shard,
            join=options.join_timeout,
            answer=options.peer_timeout,
            group=options.group,
        )

    every = read(os.environ, "row_stats_seconds")
    rank = assemble(parts, join=join, say=log.info)
    with RowLines(rank.row_stats, shard=shard, seconds=every, say=log.info):
        if listener is None:
            status = follow(rank, signals)
        else:
            settings = Settings(
                tokenizer=options.checkpoint / "tokenizer.json",
                context=options.context,
                keys=keys,
                ranks=options.world,
                service=options.group,
            )
            status = lead(rank, settings, signals, listener, queue=options.queue)
    if status == 0:
        rank.close()
    return status


def follow(rank: Assembled, signals: StopSignals) -> int:
    """Do rank 0's steps until it says stop, or until it or another rank is lost."""

    def ask() -> None:
        rank.runner.stop_wanted = True

    signals.begin(ask)
    try:
        while rank.runner.follow():
            pass
    except RuntimeError as error:  # a row that cannot be read, a collective that broke
        raise step_failed(error) from error
    return 0


def lead(
    rank: Assembled,
    settings: Settings,
    signals: StopSignals,
    listener: socket.socket,
    *,
    queue: int,
) -> int:
    """Warm up, then serve until a stop or a failure."""
    rank.runner.warm_up()
    engine = Engine(rank.runner, queue=queue, rows=rank.row_stats)
    signals.begin(lambda: None)
    engine.start()  # beats from now on, while the server loads the tokenizer
    app = create_app(engine, settings)
    return asyncio.run(
        serving.serve(app, engine, listener=listener, stop=signals.asked, say=log.info)
    )
