"""Hooks around orders and notices of their ends, over the lab's real SSH server and real processes, with webhooks of every temper."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.agent import crash_points, wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.journal import order_status, read_journal
from orchestrator.agent.notice import SEND_SECONDS
from orchestrator.agent.wire_notice import SUPERVISOR, Fate, FateOutcome
from tests.agent.webhooks import answering, closed_port, silent, stubborn
from tests.lab.test_orders_go_on import begun
from tests.lab.test_relaunch_end_to_end import PATIENCE, QUICK, Operator, every_text, layout, operator, served, serving, state

__all__ = ["layout", "operator", "served"]

pytestmark = pytest.mark.slow

RELAUNCH = ("relaunch", "--no-measure", "--yes", "--force", "--backend")
CANARY = "canary-hook-41x"
HOOK = """#!/bin/sh
echo "$1" >> "$LOG"
cat >> "$LOG.facts"
echo "$1 speaks"
echo "$1 complains" >&2
exit "${2:-0}"
"""


class Around:
    """The lab's service with hooks and a webhook, until the test is over."""

    def __init__(self, who: Operator, folder: Path) -> None:
        self.who = who
        self.log = folder / "hooks.log"
        self._service = who.layout.inventory / "services" / "glm5-rtx6000.yml"
        self._original = self._service.read_text()
        program = who.layout.inventory / "hook.sh"
        program.write_text(HOOK)
        program.chmod(0o755)
        who.environment["LOG"] = str(self.log)
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            who.environment.pop(name, None)

    def write(self, *, before: list[Any] | None = None, after: list[Any] | None = None, webhook: str | None = None, **more: Any) -> None:
        service = yaml.safe_load(self._original)
        service["hooks"] = {"before": before or [], "after": after or []}
        if webhook is not None:
            self.who.environment["HOOK_URL"] = webhook
            service["webhook"] = {"url": "env:HOOK_URL", **more}
        self._service.write_text(yaml.safe_dump(service))

    def restore(self) -> None:
        self._service.write_text(self._original)

    def ran(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    def facts(self) -> list[Any]:
        decoder, text, found = json.JSONDecoder(), Path(f"{self.log}.facts").read_text().strip(), []
        while text:
            document, end = decoder.raw_decode(text)
            found.append(document)
            text = text[end:].strip()
        return found

    @property
    def newest(self) -> Path:
        folder = state(self.who.layout)
        return folder.order_folder(folder.order_ids()[-1])

    def fate(self) -> Fate:
        return wire.from_json(Fate, json.loads((self.newest / "notice.json").read_text()))


@pytest.fixture
def around(served: Operator, tmp_path: Path) -> Iterator[Around]:
    made = Around(served, tmp_path)
    yield made
    made.restore()


def holding(*folders: Path) -> set[str]:
    """The names of files in which the webhook's secret can be read."""
    return {path.name for folder in folders for path, text in every_text(folder) if CANARY in text}


def another(who: Operator) -> str:
    """A backend that works there and is not the one that serves, so that nothing has to be forced."""
    return "marlin" if who.ask("status")["report"]["server"]["backend"] != "marlin" else "auto"


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_a_relaunch_with_all_of_it(around: Around) -> None:
    who = around.who
    with answering() as webhook:
        around.write(before=[["./hook.sh", "b1"], ["./hook.sh", "b2"]], after=[["./hook.sh", "a1"]], webhook=webhook.url)
        planned = who.run("relaunch", "--backend", "marlin", "--plan", "--force")
        done = who.run(*RELAUNCH, "marlin", "--reason", "try <it>")
    assert planned.returncode == 0, planned.stderr
    assert f"before {who.layout.inventory}/hook.sh b1 (30 s at most; refuses it when it fails)" in unwrapped(planned.stdout)
    assert "sent by the box itself, also when this machine is closed" in unwrapped(planned.stdout)
    assert (done.returncode, around.ran()) == (0, ["b1", "b2", "a1"]), done.stderr
    before, _, after = around.facts()
    assert (before["when"], before["new_backend"], before["reason"]) == ("before", "marlin", "try <it>")
    assert (after["state"], after["exit_code"], after["order"]) == ("DONE", 0, around.newest.name)
    assert after["dark_seconds"] > 0
    (text,) = webhook.texts
    assert text.startswith(f"relaunch of glm5-rtx6000 on {QUICK}: DONE, ")
    assert "(try &lt;it&gt;), " in text
    assert "dark for " in text
    fate = around.fate()
    assert (fate.by, fate.outcome) == (SUPERVISOR, FateOutcome.DONE)
    told = unwrapped(done.stdout)
    assert "notice sent, by the box itself: 127.0.0.1 answered 200" in told
    assert "b1: ended well after" in told
    assert "notice sent, by the box itself" in unwrapped(who.run("status").stdout)
    (run,) = [path for path in who.runs.iterdir() if "-relaunch-" in path.name]
    assert Path(before["run"]) == run
    assert (run / "hook-before-2.txt").read_text().endswith("\n--- output\nb2 speaks\n\n--- errors\nb2 complains\n")
    assert {"hook-before-1.txt", "hook-after-1.txt", "notice.json"} <= {path.name for path in run.iterdir()}
    assert CANARY not in planned.stdout + planned.stderr + done.stdout + done.stderr
    assert (holding(who.runs), holding(state(who.layout).path)) == (set(), {"order.json"})


def test_the_notice_comes_when_the_operator_is_gone_and_who_attaches_runs_what_is_left_once(around: Around) -> None:
    who = around.who
    with answering() as webhook:
        around.write(before=[["./hook.sh", "b1"]], after=[["./hook.sh", "a1"]], webhook=webhook.url)
        with begun(who, "flashinfer_cutlass", "DRAINING") as (process, order_id):
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert wait_until(lambda: bool(webhook.texts), Deadline(PATIENCE), 0.02)
        assert around.ran() == ["b1"]
        first = who.run("attach", "--order", order_id, "--json")
        second = who.run("attach", "--order", order_id)
    assert len(webhook.texts) == 1
    assert webhook.texts[0].split("\n")[0].startswith(f"relaunch of glm5-rtx6000 on {QUICK}: DONE, ")
    assert (first.returncode, second.returncode, around.ran()) == (0, 0, ["b1", "a1"]), first.stderr
    document = json.loads(first.stdout)
    assert [(hook["when"], hook["status"]) for hook in document["hooks"]] == [("after", 0)]
    assert (document["notice"]["by"], document["notice"]["outcome"]) == (SUPERVISOR, "done")
    assert "not again" in unwrapped(second.stdout)


def test_a_webhook_that_never_answers_costs_no_service_and_little_time(around: Around) -> None:
    who = around.who
    with stubborn(silent) as webhook:
        around.write(webhook=webhook.url.replace(webhook.path, f"/{CANARY}"))
        begun_at = time.monotonic()
        done = who.run(*RELAUNCH, "auto")
        ended_at = time.monotonic()
    assert done.returncode == 0, done.stderr
    entries = read_journal(around.newest / "journal.jsonl")
    _, posted = webhook.times  # the first was whether it is reached, before the question
    assert webhook.times[0] < entries[0].monotonic
    assert posted > entries[-1].monotonic, "nothing was sent before the order had ended"
    assert ended_at - entries[-1].monotonic < SEND_SECONDS + 10.0
    assert ended_at - begun_at < PATIENCE
    fate = around.fate()
    assert (fate.outcome, fate.attempts) == (FateOutcome.UNKNOWN, 1)
    assert "notice may have arrived, by the box itself" in unwrapped(done.stdout)
    status = order_status(state(who.layout), around.newest.name)
    assert status is not None
    assert (status.live, status.notice) == (False, fate)


def test_another_order_need_not_wait_for_a_notice_that_hangs(around: Around) -> None:
    who, folder = around.who, state(around.who.layout)
    with stubborn(silent) as webhook:
        around.write(webhook=webhook.url)
        with begun(who, "marlin", "DONE") as (_, order_id):
            assert wait_until(lambda: len(webhook.times) == 2, Deadline(PATIENCE), 0.01)
            status = order_status(folder, order_id)
            assert status is not None
            assert (status.state, status.live) == ("DONE", False), "its supervisor sends, and holds nothing"


def test_a_dead_webhook_is_told_and_fails_nothing(around: Around) -> None:
    who = around.who
    around.write(webhook=f"http://127.0.0.1:{closed_port()}/{CANARY}")
    done = who.run(*RELAUNCH, "auto")
    assert done.returncode == 0, done.stderr
    told = unwrapped(done.stdout)
    assert "the box does not reach it: 127.0.0.1 port" in told
    assert "notice not sent, by" in told
    assert around.fate().by != SUPERVISOR
    assert CANARY not in done.stdout + done.stderr
    assert (holding(who.runs), CANARY in (around.newest / "order.json").read_text()) == (set(), False)


def test_a_webhook_that_came_up_since_is_told_by_whoever_attaches(around: Around) -> None:
    who = around.who
    with answering() as webhook:
        dead = f"http://127.0.0.1:{closed_port()}/{CANARY}"
        around.write(webhook=dead)
        assert who.run(*RELAUNCH, "marlin").returncode == 0
        who.environment["HOOK_URL"] = webhook.url
        attached = [who.run("attach") for _ in range(2)]
    assert [done.returncode for done in attached] == [0, 0]
    assert len(webhook.texts) == 1
    assert "the notice is sent from here" in unwrapped(attached[0].stdout)


def test_a_hook_before_it_that_fails_leaves_everything_as_it_was(around: Around) -> None:
    who, folder = around.who, state(around.who.layout)
    (server,), orders = serving(who.layout), folder.order_ids()
    with answering() as webhook:
        around.write(before=[["./hook.sh", "b1", "7"]], after=[["./hook.sh", "a1"]], webhook=webhook.url)
        done = who.run("relaunch", "--backend", another(who), "--no-measure", "--yes")
    assert done.returncode == 3
    said = unwrapped(done.stderr)
    assert "refused, nothing was touched: the hook before it, " in said
    assert "ended with status 7" in said
    assert "b1 complains" in said
    assert "give --force" in said
    (after,) = serving(who.layout)
    assert (after.main.id, folder.order_ids(), webhook.texts) == (server.main.id, orders, [])
    assert (around.ran(), around.facts()[1]["state"]) == (["b1", "a1"], "REFUSED")


def test_a_hook_after_it_that_fails_or_hangs_is_told_and_changes_nothing(around: Around) -> None:
    hanging = {"command": ["sleep", "600"], "timeout": 1.0}
    around.write(before=[{"command": ["./hook.sh", "b1", "1"], "on_failure": "warn"}], after=[["./hook.sh", "a1", "1"], hanging])
    done = around.who.run("relaunch", "--no-measure", "--yes", "--backend", another(around.who))
    assert done.returncode == 0, done.stderr
    told = unwrapped(done.stdout)
    assert "b1 1: ended with status 1" in told
    assert "a1 1: ended with status 1" in told
    assert "sleep 600: did not end within 1 s and was killed" in told


def test_a_failed_relaunch_tells_its_class(around: Around) -> None:
    with answering() as webhook:
        around.write(webhook=webhook.url, when=["failure"])
        done = around.who.run("relaunch", "--no-measure", "--yes", "--backend", "flashinfer_cutedsl")
        (text,) = webhook.texts
        good = around.who.run(*RELAUNCH, "auto")
    assert (done.returncode, good.returncode, len(webhook.texts)) == (6, 0, 1), done.stderr
    assert text.startswith(f"relaunch of glm5-rtx6000 on {QUICK}: RESTORED, ")
    assert "\nfailure: kernel_missing\n" in text
    assert re.search(rf"\nnext: fab \w+ --host {QUICK} --service glm5-rtx6000", text), text


@pytest.mark.parametrize(("point", "sent"), [("before the notice", 1), ("the notice", 2)])
def test_a_supervisor_that_is_killed_around_its_notice_leaves_it_to_the_operators_end(around: Around, point: str, sent: int) -> None:
    folder = state(around.who.layout)
    with answering() as webhook:
        around.write(webhook=webhook.url)
        (folder.path / crash_points.FILE).write_text(point)
        done = around.who.run(*RELAUNCH, "marlin")
    assert done.returncode == 0, done.stderr
    assert not (folder.path / crash_points.FILE).exists()
    assert len(webhook.texts) == sent
    fate = around.fate()
    assert (fate.by != SUPERVISOR, fate.outcome) == (True, FateOutcome.DONE)


def test_teardown_and_launch_are_told_too(around: Around) -> None:
    who = around.who
    with answering() as webhook:
        around.write(before=[["./hook.sh", "b1"]], after=[["./hook.sh", "a1"]], webhook=webhook.url)
        down = who.run("teardown", "--yes")
        up = who.run("launch", "--backend", "auto", "--yes")
        back = who.run("rollback", "--yes", "--no-measure", "--force")
    assert [done.returncode for done in (down, up, back)] == [0, 0, 0], back.stderr
    assert [text.split(" ", 1)[0] for text in webhook.texts] == ["teardown", "launch", "rollback"]
    assert [fact["verb"] for fact in around.facts()] == ["teardown", "teardown", "launch", "launch", "rollback", "rollback"]
