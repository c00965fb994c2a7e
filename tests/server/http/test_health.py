"""For those who look after a server: alive, ready, and figures."""

from pathlib import Path

import httpx

import runnel
from runnel.server.http.application import build
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ServedBroker
from tests.server.http.browser import web


async def test_it_is_alive_and_ready_and_tells_its_figures(tmp_path: Path) -> None:
    async with web(runnel.open(tmp_path)) as (broker, client):
        await broker.publish("t", b"x")
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'runnel_events_published_total{topic="t"} 1' in answer.text
        assert "runnel_journal_syncs_total" in answer.text
        assert "runnel_start_time_seconds 1" in answer.text
        assert "runnel_connections 1" in answer.text, "that of the client"


async def test_it_is_not_ready_while_it_stops_nor_when_the_broker_is_closed() -> None:
    async with runnel.open() as broker:
        serving = ServedBroker(broker, ServerOptions())
        app = build(serving, mounted=True)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            assert (await client.get("/readyz")).status_code == 200
            serving.connections.draining = True
            answer = await client.get("/readyz")
            assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
            assert (await client.get("/healthz")).status_code == 200
            serving.connections.draining = False
            broker.close()
            assert (await client.get("/readyz")).status_code == 503
