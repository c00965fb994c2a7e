"""Checks of a cluster when it is opened: version, JetStream, the stream, and whether writes are synced.

With its default `sync_interval` a nats-server acknowledges writes that a power cut loses. Only its monitoring port
shows the setting; where that cannot be reached, a warning says what to check.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from runnel.cluster.jetstream import JetStream, check_stream, check_version, stream_config
from runnel.cluster.options import ClusterOptions
from runnel.core.errors import ClusterRefused, NotSupported

log = logging.getLogger("runnel")

NO_STREAM, NAME_IN_USE, NOT_ENOUGH = 10059, (10058, 10065), (10005, 10074)
MONITOR_PORT = 8222
PATIENCE = 2.0  # seconds for the monitoring port


async def check_cluster(js: JetStream, options: ClusterOptions, *, quiet: bool = False) -> tuple[str, str | None]:
    """Check the cluster, and make the stream if it is not there: its id, and how writes are synced, if known."""
    info = js.link.info
    check_version(str(info.get("version", "")))
    if not info.get("headers"):
        raise NotSupported("a server without headers", "records need them; set no_header_support: false")
    if not info.get("jetstream"):
        why = "JetStream is off: add a block `jetstream {}` to the configuration of every server"
        raise NotSupported(f"the server at {js.link.connection.address}", why)
    stream = await _stream(js, options)
    config = stream["config"]
    check_stream(config)
    if quiet:
        return f"{js.stream}@{stream['created']}", None
    wanted = options.replicas
    if wanted is not None and config["num_replicas"] != wanted:
        log.warning(
            "the stream %r has %d replicas, not %d as asked; change it with `nats stream edit`",
            js.stream,
            config["num_replicas"],
            wanted,
        )
    elif config["num_replicas"] < 3 and info.get("cluster"):
        log.warning("the stream %r has fewer than 3 replicas: losing one server may lose records", js.stream)
    sync = await asyncio.to_thread(_sync, js, options)
    if sync is None:
        log.warning(
            "whether the cluster syncs every write to disk is not known: its monitoring port was not reached. Set "
            "`sync_interval: always` in the jetstream block of every server: else a power cut loses acknowledged "
            "records. monitor='http://host:8222' checks it"
        )
    elif sync != "commit":
        log.warning(
            "the cluster does not sync every write to disk: a power cut loses acknowledged records. Set "
            "`sync_interval: always` in the jetstream block of every server"
        )
    return f"{js.stream}@{stream['created']}", sync


async def _stream(js: JetStream, options: ClusterOptions) -> dict[str, Any]:
    """The stream, made if it is not there."""
    try:
        return await js.api(f"STREAM.INFO.{js.stream}")
    except ClusterRefused as error:
        if error.number != NO_STREAM:
            raise
    in_cluster = bool(js.link.info.get("cluster"))
    replicas = options.replicas or (3 if in_cluster else 1)
    loop = asyncio.get_running_loop()
    end = loop.time() + options.wait
    while True:
        try:
            return await js.api(f"STREAM.CREATE.{js.stream}", stream_config(js.stream, replicas))
        except ClusterRefused as error:
            if error.number in NAME_IN_USE:  # another process was faster
                return await js.api(f"STREAM.INFO.{js.stream}")
            if error.number not in NOT_ENOUGH:
                raise
            if not in_cluster or loop.time() >= end:  # servers of a cluster that just starts do not know each other yet
                why = f"{replicas} replicas need as many servers with JetStream: {error.why}; give replicas=1 to try"
                raise NotSupported(f"{replicas} replicas", why) from error
        await asyncio.sleep(0.2)


def _sync(js: JetStream, options: ClusterOptions) -> str | None:
    """Whether writes are synced ("commit") or not ("interval"); None: not known."""
    if options.monitor is not None:
        base = options.monitor.rstrip("/")
    else:
        host = urlsplit(js.link.connection.address or "").hostname or "127.0.0.1"
        base = f"http://{f'[{host}]' if ':' in host else host}:{MONITOR_PORT}"
    if urlsplit(base).scheme not in ("http", "https"):
        return None
    try:
        with urlopen(f"{base}/varz", timeout=PATIENCE) as answer:  # the scheme is checked
            if options.monitor is None and json.load(answer).get("server_id") != js.link.info.get("server_id"):
                return None  # another server of this host
        with urlopen(f"{base}/jsz", timeout=PATIENCE) as answer:
            return "commit" if json.load(answer)["config"].get("sync_always") else "interval"
    except (OSError, ValueError, KeyError, TypeError):
        return None
