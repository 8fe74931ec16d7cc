"""The shipped alert and recording rules: promtool accepts them, each alert fires for what it is for and is silent otherwise, every
metric that they name is documented, and every alert has its section in docs/alerts.md."""

import re
import subprocess

import pytest
import yaml

import real

RULES = real.ROOT / "deploy" / "prometheus-rules.yml"


def promtool(*args):
    if not real.have("promtool"):
        pytest.skip("promtool is not installed")
    r = subprocess.run(["promtool", *map(str, args)], capture_output=True, text=True, timeout=60, check=False)
    assert r.returncode == 0, r.stdout + r.stderr


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_rules_are_valid():
    promtool("check", "rules", RULES)


def test_alerts_fire_when_they_should(tmp_path):
    test = tmp_path / "test.yml"
    test.write_text((real.ROOT / "tests" / "e2e" / "rules_test.yml").read_text().replace("RULES", str(RULES)))
    promtool("test", "rules", test)


def test_every_alert_has_a_runbook_and_is_tested():
    headings = re.findall(r"^## (\w+)", (real.ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    alerts = [rule for rule in rules() if "alert" in rule]
    assert [a["alert"] for a in alerts] == headings
    for a in alerts:
        assert a["annotations"]["runbook"] == f"docs/alerts.md#{a['alert'].lower()}"
    tested = (real.ROOT / "tests" / "e2e" / "rules_test.yml").read_text()
    latency = {"SluiceQueueWaits", "SluiceLoopStalls"}  # quantiles of histograms: their metrics are checked below
    assert not [a["alert"] for a in alerts if a["alert"] not in tested and a["alert"] not in latency]


def test_rules_name_metrics_that_exist():
    documented = set(re.findall(r"^\| `(sluice_\w+)`", (real.ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        for name in re.findall(r"\bsluice[:_][\w:]+", rule["expr"]):
            plain = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in recorded or plain in documented or name in documented, f"{name} in {rule}"
