"""The scrape job and the alert rules are what Prometheus' own checker takes, and fire when they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from laggard.telemetry.prometheus import scrape_config, write_prometheus

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")

DEVICE, NODE, PROGRESS, SERVER = "LaggardDeviceSlow", "LaggardNodeLost", "LaggardNoProgress", "LaggardServerDown"
SLOW = 'laggard_device_slow_timestamp_seconds{hostname="node2",gpu="0"}'
LOST = 'laggard_node_up{hostname="node2"}'
STEP = "laggard_progress_timestamp_seconds"
# The series that there are, with a value for each 15 s; when to look; the alert, and how many times it fires then.
CASES: dict[str, tuple[dict[str, str], str, str, int]] = {
    "a device was found slow five minutes ago": ({SLOW: "300x40"}, "10m", DEVICE, 1),
    "a device was found slow eleven minutes ago": ({SLOW: "60x60"}, "12m", DEVICE, 0),
    "a node does not answer": ({LOST: "1x4 0x20", 'laggard_node_up{hostname="node1"}': "1x24"}, "4m", NODE, 1),
    "a node was late once": ({LOST: "1x4 0x1 1x20"}, "4m", NODE, 0),
    "the last step was 40 minutes ago": ({STEP: "60x200"}, "41m", PROGRESS, 1),
    "the last step was 20 minutes ago": ({STEP: "60x200"}, "21m", PROGRESS, 0),
    "the server is down": ({'up{job="laggard"}': "1x2 0x20"}, "4m", SERVER, 1),
    "another job's server is down": ({'up{job="other"}': "0x20"}, "4m", SERVER, 0),
}


def promtool(*arguments: object) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
@pytest.mark.parametrize("url", ["http://localhost:4242", "http://[::1]:80", "https://grafana.example/laggard/"])
@pytest.mark.parametrize("token", ["", "secret"])
def test_prometheus_takes_the_configuration_and_the_rules(tmp_path: Path, url: str, token: str) -> None:
    written = write_prometheus(tmp_path / "prometheus", url, token)

    assert "4 rules found" in promtool("check", "config", written[0])


@needs_promtool
def test_prometheus_takes_the_guides_line_that_leads_to_alertmanager(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/guides/operator.md").read_text()
    alerting, alertmanager = (yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[-2:])
    config, *_ = write_prometheus(tmp_path / "prometheus", "http://localhost:4242")
    config.write_text(config.read_text() + yaml.safe_dump(alerting))
    promtool("check", "config", config)

    (route,) = alertmanager["route"]["routes"]
    assert route["receiver"] in {each["name"] for each in alertmanager["receivers"] if "slack_configs" in each}
    (match,) = (matcher.removeprefix("alertname=~").strip('"') for matcher in route["matchers"])
    assert all(re.fullmatch(match, alert) for alert in (DEVICE, NODE, PROGRESS, SERVER))


def test_the_scrape_job_for_opentelemetrys_collector_is_prometheus_own() -> None:
    page = (Path(__file__).parents[2] / "docs/telemetry.md").read_text()
    (block,) = (each for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "otlphttp" in each)
    collector = yaml.safe_load(block)

    # Its receiver refuses what Prometheus' configuration has beside scrape jobs.
    written = scrape_config("http://localhost:4242", has_token=False)["scrape_configs"]
    defaults = {"scheme": "http", "metrics_path": "/metrics"}
    assert [defaults | job for job in collector["receivers"]["prometheus"]["config"]["scrape_configs"]] == written
    (pipeline,) = collector["service"]["pipelines"].values()
    assert pipeline == {"receivers": ["prometheus"], "exporters": [*collector["exporters"]]}


@needs_promtool
@pytest.mark.parametrize("case", CASES)
def test_an_alert_fires_when_its_time_has_come(tmp_path: Path, case: str) -> None:
    series, at, alert, n_firing = CASES[case]
    firing = {"labels": '{alertstate="firing"}', "value": n_firing}
    test: dict[str, Any] = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count by (alertstate) (ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": at,
                "exp_samples": [firing] if n_firing else [],
            }
        ],
    }
    write_prometheus(tmp_path, "http://localhost:4242")
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [test]}))

    promtool("test", "rules", tmp_path / "test.yml")


def test_the_token_is_in_a_file_of_the_owner_and_nowhere_else(tmp_path: Path) -> None:
    written = write_prometheus(tmp_path / "prometheus", "http://localhost:4242", "secret")

    token = tmp_path / "prometheus" / "token"
    assert token in written
    assert token.stat().st_mode & 0o077 == 0
    assert token.read_text() == "secret"
    assert not [path for path in written if path != token and "secret" in path.read_text()]
    (scrape,) = scrape_config("http://localhost:4242", has_token=True)["scrape_configs"]
    assert scrape["authorization"] == {"type": "Bearer", "credentials_file": "token"}


def test_every_rule_says_in_words_what_is_the_matter(tmp_path: Path) -> None:
    _, rules = write_prometheus(tmp_path, "http://localhost:4242")
    (group,) = yaml.safe_load(rules.read_text())["groups"]

    assert [rule["alert"] for rule in group["rules"]] == [DEVICE, NODE, PROGRESS, SERVER]
    assert all(rule["annotations"]["summary"] for rule in group["rules"])
