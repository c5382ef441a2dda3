"""A server that somebody started by hand is adopted, replaced and brought back exactly as it was, by the whole program over SSH.

The server is the lab's stand-in; container, systemd, users and SSH are real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.rig.commands import wait_for
from tests.rig.container import Container
from tests.rig.inventory import BY_SSH, write_backend, write_service
from tests.rig.operator import Operator
from tests.rig.somebodys_venv import somebodys_venv
from tests.rig.tiny_model import write_model

pytestmark = pytest.mark.lxc

PORT = 30088
VENV = "/opt/venv-of-somebody"
KEY = "canary-4711-hunter2"
TOKEN = "hf_canarytoken4711"
HOME = "/home/operator"

BY_HAND = f"""
cd {HOME}
cat > serve.sh <<'END'
ulimit -Sn 4096
ulimit -Hn 8192
ulimit -c 0
umask 0027
cd {HOME}
exec nohup bin/../../..{VENV}/bin/python -m sglang.launch_server --model /srv/models/adopted --port {PORT} --api-key {KEY} --log-level=info
END
mkdir -p bin
exec setsid setpriv --reuid 1000 --regid 1000 --groups 1000,6,5 env -i PATH={VENV}/bin:/usr/bin:/bin HOME={HOME} \\
    HF_TOKEN={TOKEN} NCCL_DEBUG=WARN SGLANG_STANDIN_TIME_SCALE=0.05 MY_NOTE='a "quoted" $note' \\
    'PS1=\x1b[1m$ ' bash serve.sh > {HOME}/server.out 2>&1 < /dev/null &
"""
OURS = {"NO_PROXY", "no_proxy", "ORCHESTRATOR_LAUNCH", "SPT_NOENV"}
SYSTEMD = {"INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "LOGNAME", "USER", "SHELL", "LANG"}


@dataclass(frozen=True)
class Seen:
    """What the kernel shows of a server's main process."""

    status: dict[str, str]
    limits: str
    environment: dict[str, str]
    directory: str
    command: list[str]


@dataclass
class Stage:
    """A container, an operator, and no service in the inventory yet."""

    container: Container
    operator: Operator

    def main(self) -> str:
        """The process that listens, "" when none does."""
        found = self.container.shell(f"ss -Hltnp 'sport = :{PORT}' | sed -n 's/.*pid=\\([0-9]*\\).*/\\1/p'", check=False).stdout.split()
        return found[0] if found else ""

    def see(self) -> Seen:
        pid = self.main()

        def read(name: str) -> str:
            return self.container.run("cat", f"/proc/{pid}/{name}").stdout

        status = dict(line.split(":", 1) for line in read("status").splitlines() if ":" in line)
        return Seen(
            {name: " ".join(status[name].split()) for name in ("Uid", "Gid", "Groups", "Umask")},
            read("limits"),
            dict(item.split("=", 1) for item in read("environ").split("\0") if "=" in item),
            self.container.run("readlink", f"/proc/{pid}/cwd").stdout.strip(),
            read("cmdline").split("\0"),
        )

    def files(self) -> str:
        """All that this program has left on the operator's side."""
        folders = (self.operator.inventory, self.operator.home)
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for at in folders for path in at.rglob("*") if path.is_file())


@pytest.fixture
def stage(container: Container, lxc_inventory: Path, tmp_path: Path) -> Iterator[Stage]:
    write_model(container.path("/srv/models/adopted"))
    container.shell(f"mkdir -p {HOME}; chown -R operator {HOME}")
    write_backend(lxc_inventory, "triton", {"--attention-backend": "triton"})
    home = tmp_path / "home"
    home.mkdir()
    made = Stage(container, Operator(lxc_inventory, home))
    with somebodys_venv(container, VENV):
        container.shell(BY_HAND)
        wait_for("the server", lambda: bool(made.main()), 30.0, 0.3)
        yield made
        container.shell(
            f"rm -f /var/lib/orchestrator/*/boot; systemctl stop 'orchestrator-*'; p=$(ss -Hltnp 'sport = :{PORT}' | sed -n "
            "'s/.*pid=\\([0-9]*\\).*/\\1/p'); [ -z \"$p\" ] || kill $p; "
            "find /etc/systemd/system -name 'orchestrator-*' -delete; systemctl daemon-reload; rm -rf /var/lib/orchestrator",
            check=False,
        )


@pytest.mark.slow
def test_a_server_started_by_hand_is_adopted_replaced_and_brought_back_exactly_as_it_was(stage: Stage) -> None:
    operator = stage.operator
    before = stage.see()
    printed = operator.ask("adopt", "--host", BY_SSH, "--port", str(PORT), "--service", "mine", "--print", timeout=120).expect(0)
    assert not list((operator.inventory / "services").iterdir())
    assert printed.document["rollback"] is None

    adopted = operator.ask("adopt", "--host", BY_SSH, "--port", str(PORT), "--service", "mine", "--yes", timeout=120).expect(0)
    path = operator.inventory / "services/mine.yml"
    service = yaml.safe_load(path.read_text())
    assert path.read_text() == printed.document["text"].replace(printed.document["text"].splitlines()[0], path.read_text().splitlines()[0])
    assert service["python"] == f"{VENV}/bin/python", "the venv's, by argv[0]"
    assert (service["model"], service["port"], service["user"], service["directory"]) == ("/srv/models/adopted", PORT, "operator", HOME)
    assert service["arguments"] == {"--log-level": "info"}
    assert service["environment"] == {"NCCL_DEBUG": "WARN", "SGLANG_STANDIN_TIME_SCALE": "0.05"}
    assert service["secrets"] == {"api-key": "env:MINE_API_KEY"}
    assert any("api-key" in remark for remark in adopted.document["remarks"])
    assert any("HF_TOKEN" in remark for remark in adopted.document["remarks"])
    everything = stage.files() + json.dumps(adopted.document) + adopted.errors + json.dumps(printed.document)
    assert KEY not in everything
    assert TOKEN not in everything
    kept = stage.container.run("find", "/var/lib/orchestrator/mine", "-name", "launch.json", "-perm", "600").stdout.split()
    assert len(kept) == 1
    assert TOKEN in stage.container.run("cat", kept[0]).stdout
    assert stage.see() == before, "it was not touched"

    listed = operator.ask("rollback", "--list", "--host", BY_SSH, timeout=60).expect(0).document["report"]["launches"]
    assert [(item["launch"]["backend"], item["serves"], item["verified"] is not None) for item in listed] == [("as found", True, True)]

    again = operator.ask("adopt", "--host", BY_SSH, "--service", "mine", "--yes", timeout=120)
    again.expect(0)
    assert again.document["written"] is False
    assert yaml.safe_load(path.read_text()) == service

    path.write_text(path.read_text().replace("env:MINE_API_KEY", "file:key"))
    (operator.inventory / "key").write_text(KEY)
    change = ["--host", BY_SSH, "--yes", "--no-measure"]
    operator.ask("relaunch", "--backend", "triton", "--accept-drift", *change, timeout=180).expect(0)
    replaced = stage.see()
    assert replaced.limits != before.limits
    assert "triton" in replaced.command

    back = operator.ask("rollback", *change, timeout=180).expect(0)
    after = stage.see()
    assert (after.status, after.directory) == (before.status, before.directory)
    assert after.limits == before.limits
    carried = {name: value for name, value in before.environment.items() if name not in ("PS1", "_", "PWD", "OLDPWD", "SHLVL")}
    assert {name: value for name, value in after.environment.items() if name in carried} == carried
    assert set(after.environment) - set(before.environment) <= OURS | SYSTEMD
    assert KEY not in " ".join(after.command)
    assert KEY not in stage.files().replace((operator.inventory / "key").read_text(), "", 1)
    assert back.document["result"]["launch_id"] == after.environment["ORCHESTRATOR_LAUNCH"]

    # And forth: the launch verified before this one is the relaunch's.
    plan = operator.ask("rollback", "--host", BY_SSH, "--plan", timeout=120).expect(0)
    assert plan.document["plan"]["launch"]["backend"] == "triton"
    refused = operator.ask("rollback", "--to", after.environment["ORCHESTRATOR_LAUNCH"], "--host", BY_SSH, "--plan", timeout=120)
    refused.expect(3)

    # It comes back by itself as the same launch, with everything it had.
    pid = stage.main()
    stage.container.run("kill", "-KILL", pid)
    wait_for("its return", lambda: stage.main() not in ("", pid), 60.0, 0.5)
    returned = stage.see()
    assert (returned.status, returned.limits) == (after.status, after.limits)
    assert returned.environment["ORCHESTRATOR_LAUNCH"] == after.environment["ORCHESTRATOR_LAUNCH"]
    unit = operator.ask("status", "--host", BY_SSH, timeout=60).document["report"]["boot"]
    assert (unit["armed"], unit["restarts"]) == (True, 1)
    off = operator.ask("boot", "--off", "--host", BY_SSH, timeout=60).expect(0)
    assert off.document["report"]["unit"] is None


@pytest.mark.slow
def test_no_way_back_is_told_where_the_servers_own_python_refuses_its_arguments(stage: Stage) -> None:
    flags = stage.container.path(VENV) / "lib/python3.11/site-packages/sglang/srt/flags.json"
    text = flags.read_text()
    try:
        flags.write_text(text.replace('"--log-level"', '"--log-level-was"'))
        answer = stage.operator.ask("adopt", "--host", BY_SSH, "--port", str(PORT), "--service", "mine", "--plan", timeout=120)
    finally:
        flags.write_text(text)
    answer.expect(0)
    assert "refuses its arguments" in answer.document["rollback"]
    assert not list((stage.operator.inventory / "services").iterdir())


@pytest.mark.slow
def test_what_was_never_there_is_refused(stage: Stage) -> None:
    answer = stage.operator.ask("adopt", "--host", BY_SSH, "--port", "30999", "--print", timeout=60)
    answer.expect(3)
    assert "30999" in answer.errors
    write_service(stage.operator.inventory, "mine", {"host": BY_SSH, "python": f"{VENV}/bin/python", "model": "/m", "port": PORT})
    nothing = stage.operator.ask("rollback", "--host", BY_SSH, "--plan", timeout=60)
    nothing.expect(3)
    assert "nothing to go back to" in nothing.errors
