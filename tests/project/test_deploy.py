"""The files of `deploy/` name metrics that exist, and every alert has its place in the runbook."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\brunnel_[a-z_]+\b")


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Every metric of the reference; a histogram also has its buckets."""
    text = "".join(
        (ROOT / f"docs/reference/{page}.md").read_text(encoding="utf-8") for page in ("statistics", "pipelines")
    )
    names = set(METRIC.findall(text))
    return names | {f"{name}_bucket" for name in names if name.endswith("_seconds")}


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_alerts_use_metrics_that_exist(known: set[str]) -> None:
    used = {name for rule in alerts() for name in METRIC.findall(rule["expr"])}
    assert used
    assert used <= known


def test_every_alert_has_a_heading_in_the_runbook_and_a_severity() -> None:
    runbook = (ROOT / "docs/howto/runbook.md").read_text(encoding="utf-8")
    headings = {name for line in re.findall(r"^### (.+)$", runbook, re.M) for name in line.split(", ")}
    assert headings == {rule["alert"] for rule in alerts()}
    assert {rule["labels"]["severity"] for rule in alerts()} == {"page", "ticket"}


def test_the_dashboard_uses_metrics_that_exist(known: set[str]) -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    used = {name for panel in dashboard["panels"] for one in panel["targets"] for name in METRIC.findall(one["expr"])}
    assert used
    assert used <= known
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_compose_file_mounts_files_that_exist_and_gives_the_server_authentication() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    mounted = [one.split(":")[0] for one in services["runnel"]["volumes"] if one.startswith("./")]
    assert mounted == ["./config"]  # a folder: of a file, the container would keep the one that was replaced
    named = [one.rpartition("/")[2] for one in services["runnel"]["command"] if one.startswith("/etc/runnel/")]
    assert {path.name for path in (DEPLOY / "config").iterdir()} >= set(named) == {"runnel.toml", "auth.toml"}
    assert {"--auth", "--host"} <= set(services["runnel"]["command"])
    assert all(one.startswith("127.0.0.1:") for one in services["runnel"]["ports"])


def test_the_image_does_not_run_as_root() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert lines.index("USER 10001") < lines.index('ENTRYPOINT ["runnel", "serve", "--data", "/data"]')


def test_the_unit_gives_options_that_there_are_and_waits_for_a_stop_to_end() -> None:
    from runnel.config.keys import keys

    lines = (DEPLOY / "runnel.service").read_text(encoding="utf-8").splitlines()
    said = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    flags = {key.flag: key for key in keys().values()}
    assert set(re.findall(r"--[a-z-]+", said["ExecStart"])) - {"--config"} <= set(flags)
    assert float(said["TimeoutStopSec"]) > flags["--deadline"].default
    assert said["ExecReload"].endswith("-HUP $MAINPID")
    assert {said[one] for one in ("NoNewPrivileges", "PrivateTmp", "DynamicUser", "ProtectHome")} == {"yes"}
    assert (said["ProtectSystem"], said["StateDirectoryMode"], said["UMask"]) == ("strict", "0700", "0077")
