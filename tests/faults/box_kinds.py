"""The kinds of fault that hit the whole box, or come from outside of it: stopped, restarted, frozen, short of memory, out of reach."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from orchestrator.agent.failure_classes import Category
from orchestrator.agent.history import UNTOUCHED
from orchestrator.agent.wire import State
from tests.faults.cases import Case
from tests.faults.ending import Ending, judge, judge_untouched
from tests.faults.faults import SECTION
from tests.faults.kills import operator_at_work, orders_of, wait_new_order
from tests.faults.lane import PORT, STATE, Lane, wait
from tests.rig.commands import wait_for

TURNED_AWAY = "TURNED AWAY"
"""For a state: the box took no order."""

_CGROUPS = Path("/sys/fs/cgroup")


def _comes_back_at_boot(lane: Lane) -> None:
    """What serves has a boot unit: it came to serve by an order."""
    found = lane.server()
    if found is not None and found["listening"]:
        seen = lane.driver.ask("look", service=lane.service, order_id=None, port=PORT)
        if seen["boot"] is not None and seen["boot"]["armed"] and seen["answers"]:
            return
    old = lane.serving()
    lane.wait_end(lane.submit(lane.order(old, lane.launch("before"))))


def _kill_box(lane: Lane) -> None:
    """As a host that loses power, for the box: everything in it is gone at once."""
    lane.driver.close()
    lane.container.stop()
    lane.container.boot()


def _shut_down(lane: Lane) -> None:
    """As an administrator's shutdown: systemd stops one unit after the other."""
    lane.driver.close()
    init = lane.container.init()
    lane.container.run("systemctl", "poweroff", check=False)
    if not wait(lambda: not Path(f"/proc/{init}").exists(), 120.0):
        raise AssertionError("the container did not shut down")
    time.sleep(1.0)
    lane.container.boot()


def _reboot(lane: Lane) -> None:
    lane.driver.close()
    init = lane.container.init()
    lane.container.run("systemctl", "reboot", check=False)

    def again() -> bool:
        try:
            return lane.container.init() != init and lane.container.run("systemctl", "is-active", "ssh", check=False).returncode == 0
        except (AssertionError, ValueError):
            return False

    wait_for("the container, rebooted", again, 120.0, 0.3)


def _restart(lane: Lane, end: Callable[[Lane], None], state: str, settings: dict[str, str], *, staged: bool = False) -> Ending:
    """Everybody on the box ends with it; what the order comes to is judged by what is there afterwards."""
    _comes_back_at_boot(lane)
    found = lane.server()
    assert found is not None
    extra = {f"SGLANG_STANDIN_{name.upper()}": value for name, value in settings.items()}
    order_id = lane.submit(lane.order(found["main"], lane.launch("new", environment=extra), staged=staged))
    lane.wait_state(order_id, state, *State.FINAL)
    lane.bystanders = {}
    end(lane)
    lane.wait_end(order_id)
    lane.populate()
    wait(lambda: bool((lane.server() or {}).get("listening")), 120.0)
    now = lane.server()
    return judge(lane, order_id, None if now is None else now["main"])


def _restarts() -> list[Case]:
    slow, failing = {"slow_start": "5"}, {"fail_at": "kv_cache"}
    killed = "lxc-stop --kill, started again"
    # In BASELINE the kill may come after the first signal.
    table: Sequence[tuple[str, str, Callable[[Lane], None], str, Sequence[str], dict[str, str]]] = (
        ("container stopped in BASELINE", killed, _kill_box, State.BASELINE, (State.REFUSED, State.RESTORED), {}),
        ("container stopped in STOPPING", killed, _kill_box, State.STOPPING, (State.RESTORED,), {}),
        ("container stopped in LOADING", killed, _kill_box, State.LOADING, (State.RESTORED,), slow),
        ("container stopped in ROLLING_BACK", killed, _kill_box, State.ROLLING_BACK, (State.RESTORED,), failing),
        ("box shut down in LOADING", "systemctl poweroff, started again", _shut_down, State.LOADING, (State.RESTORED,), slow),
        ("box rebooted in LOADING", "systemctl reboot", _reboot, State.LOADING, (State.RESTORED,), slow),
    )
    plain = [
        Case(SECTION, name, partial(_restart, end=end, state=state, settings=settings), final, how=how)
        for name, how, end, state, final, settings in table
    ]
    staging, activated = {"hang_at": "gate"}, {"slow_start": "5"}
    beside: Sequence[tuple[str, str, Callable[[Lane], None], str, Sequence[str], dict[str, str]]] = (
        ("container stopped in STAGING", killed, _kill_box, State.STAGING, (State.REFUSED,), staging),
        ("box shut down in STAGING", "systemctl poweroff, started again", _shut_down, State.STAGING, (State.REFUSED,), staging),
        ("box rebooted in STAGING", "systemctl reboot", _reboot, State.STAGING, (State.REFUSED,), staging),
        ("container stopped in LOADING", killed, _kill_box, State.LOADING, (State.RESTORED,), activated),
    )
    return [
        *plain,
        *(
            Case(SECTION, f"staged: {name}", partial(_restart, end=end, state=state, settings=settings, staged=True), final, how=how)
            for name, how, end, state, final, settings in beside
        ),
    ]


def _freezer(lane: Lane) -> Path:
    return _CGROUPS / "freezer" / f"lxc.payload.{lane.container.name}"


def _frozen(lane: Lane) -> Ending:
    """Longer than each deadline of the load: they must not have run meanwhile."""
    old = lane.serving()
    launch = lane.launch("new", environment={"SGLANG_STANDIN_SLOW_START": "3"})
    order_id = lane.submit(lane.order(old, launch, policy={"load_total": 15, "load_stall": 4}))
    lane.wait_state(order_id, State.LOADING)
    freezer = _freezer(lane) / "freezer.state"
    freezer.write_text("FROZEN", encoding="ascii")
    time.sleep(25.0)
    freezer.write_text("THAWED", encoding="ascii")
    lane.wait_end(order_id)
    ending = judge(lane, order_id, old)
    gaps = [gap for entry in lane.journal(order_id) for gap in entry["data"].get("stood_still", [])]
    if not gaps or max(gaps) < 20.0:
        ending.problems.append(f"the journal does not tell that the box stood still: {gaps}")
    return ending


def _host_pid(lane: Lane, pid: int) -> int:
    """A process of the box by its number on the machine."""
    for line in (_freezer(lane) / "tasks").read_text(encoding="ascii").split():
        try:
            numbers = Path(f"/proc/{line}/status").read_text(encoding="utf-8").partition("NSpid:")[2].splitlines()[0].split()
        except OSError:
            continue
        if int(numbers[-1]) == pid:
            return int(line)
    raise AssertionError(f"no process {pid} in the box")


def _stuck(lane: Lane, *, new: bool) -> Ending:
    """A scheduler in state D, as one that hangs in the driver: a freezer of its own holds it, and SIGKILL waits for its thaw."""
    old = lane.serving("session")
    own = _freezer(lane) / "stuck"
    own.mkdir(exist_ok=True)
    policy = {"grace": 1, "clean": 4, "load_stall": 3}
    launch = lane.launch("new", environment={"SGLANG_STANDIN_SLOW_START": "3"})
    order_id = ""
    try:
        if new:
            order_id = lane.submit(lane.order(old, launch, policy=policy))
            lane.wait_state(order_id, State.LOADING)
        scheduler = lane.wait_member("sglang::scheduler")
        (own / "tasks").write_text(str(_host_pid(lane, scheduler)), encoding="ascii")
        (own / "freezer.state").write_text("FROZEN", encoding="ascii")
        if not new:
            order_id = lane.submit(lane.order(old, launch, policy={**policy, "verify": 10}))
        lane.wait_end(order_id)
    finally:
        (own / "freezer.state").write_text("THAWED", encoding="ascii")
        wait(lambda: not (own / "tasks").read_text(encoding="ascii").split(), 30.0)
        own.rmdir()
    result = lane.result(order_id)
    ending = judge(lane, order_id, old)
    if "can't be ended" not in result.get("summary", ""):
        ending.problems.append(f"it does not say what can't be ended: {result.get('summary')}")
    return ending


def _out_of_memory(lane: Lane) -> Ending:
    """The box's memory cgroup (version 1) has a limit that the new server goes beyond."""
    old = lane.serving()
    memory = _CGROUPS / "memory" / f"lxc.payload.{lane.container.name}"
    limit = int((memory / "memory.usage_in_bytes").read_text()) + (400 << 20)
    launch = lane.launch("new", entry=["/opt/faults/hog.py", "4000"])
    order_id = lane.submit(lane.order(old, launch))
    lane.wait_state(order_id, State.LOADING)
    try:
        (memory / "memory.limit_in_bytes").write_text(str(limit))
        lane.wait_state(order_id, State.ROLLING_BACK, *State.FINAL)
    finally:
        (memory / "memory.limit_in_bytes").write_text("-1")
    lane.wait_end(order_id)
    return judge(lane, order_id, old)


def _cut_ssh(lane: Lane, state: str, folder: Path, *, staged: bool) -> Ending:
    """Every connection of the operator's is cut when the order comes into a state; the operator's program sees the end all the same."""
    old = lane.serving()
    before = orders_of(lane)
    fails = state in (State.ROLLING_BACK, State.RESTORED)
    with operator_at_work(lane, folder, "bad" if fails else "good", staged=staged) as process:
        order_id = wait_new_order(lane, before, process)
        lane.wait_state(order_id, state, *State.FINAL)
        cut = _cut(lane)
        try:
            code = process.wait(120)
        except subprocess.TimeoutExpired:
            code = -1
    lane.wait_end(order_id)
    ending = judge(lane, order_id, old)
    # 4: the connection was cut before the box's answer, and "whether it took the order is not known", as it says.
    if code not in ((ending.exit_code, 4) if state in UNTOUCHED else (ending.exit_code,)):
        ending.problems.append(f"the operator's program ended with {code}, the order with {ending.exit_code} ({cut} connections were cut)")
    return ending


def _cut(lane: Lane) -> int:
    """End what serves the connections in the box."""
    sessions = [pid for pid, _, title, _ in lane.driver.ask("processes") if title.startswith("sshd: root")]
    for pid in sessions:
        lane.signal(pid, signal.SIGKILL)
    return len(sessions)


def _link_down(lane: Lane, folder: Path) -> Ending:
    """The box can't be reached for some seconds while it loads."""
    old = lane.serving()
    before = orders_of(lane)
    with operator_at_work(lane, folder, "good", staged=True) as process:
        order_id = wait_new_order(lane, before, process)
        lane.wait_state(order_id, State.DRAINING, *State.FINAL)
        lane.shell("ip link set eth0 down")
        time.sleep(6.0)
        lane.shell("ip link set eth0 up")
        code = process.wait(180)
    lane.wait_end(order_id)
    ending = judge(lane, order_id, old)
    if code != 0:
        ending.problems.append(f"the operator's program ended with {code}")
    return ending


def _turned_away(lane: Lane, prepare: str, undo: str, folder: Path) -> Ending:
    """The box takes no order; the exit code is the operator's program's."""
    old = lane.serving()
    lane.shell(prepare.format(folder=f"{STATE}/{lane.service}"))
    try:
        with operator_at_work(lane, folder, "good", staged=True) as process:
            code = process.wait(120)
    finally:
        lane.shell(undo.format(folder=f"{STATE}/{lane.service}"))
    ending = judge_untouched(lane, old, TURNED_AWAY)
    ending.exit_code = code
    return ending


_UNWRITABLE = ("mkdir -p {folder}/orders; mount -t tmpfs -o ro none {folder}/orders", "umount {folder}/orders")
_LOCKED = (
    'umask 077; echo \'{{"operator": "bob@desk", "reason": "new firmware", "since": 1.0}}\' > {folder}/held.json',
    "rm -f {folder}/held.json",
)

SSH_STATES = (State.CHECKED, State.BASELINE, State.STAGING, State.DRAINING, State.STOPPING, State.CLEAN, State.STARTING, State.ACTIVATING,
              State.LOADING, State.ANSWERING, State.ROLLING_BACK)  # fmt: skip


def ssh_cases(folder: Path) -> list[Case]:
    cut = [
        Case(
            SECTION,
            f"SSH cut in {state}",
            partial(_cut_ssh, state=state, folder=folder, staged=state != State.STARTING),
            (State.RESTORED if state == State.ROLLING_BACK else State.DONE,),
            how="sshd's processes for it are killed",
        )
        for state in SSH_STATES
    ]
    return [
        *cut,
        Case(SECTION, "box out of reach for a while", partial(_link_down, folder=folder), (State.DONE,), how="its network is down for 6 s"),
    ]


def _damaged(lane: Lane, name: str) -> Ending:
    """A file of the order is damaged while its supervisor is gone; who resumes it is told."""
    old = lane.serving()
    order_id = lane.submit(lane.order(old, lane.launch("new", environment={"SGLANG_STANDIN_SLOW_START": "2"})))
    lane.wait_state(order_id, State.LOADING)
    unit = f"orchestrator-{lane.service}-order-{order_id}.service"
    lane.shell(f"systemctl stop {unit}")
    path = lane.state / "orders" / order_id / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    answer = lane.driver.ask("resume", service=lane.service, order_id=order_id)
    ending = Ending("INTERRUPTED")
    status = lane.driver.ask("status", service=lane.service, order_id=order_id)
    if status is None or not status["state"].startswith("INTERRUPTED(") or not status["touched"]:
        ending.problems.append(f"with {name} damaged it does not read as interrupted: {status}")
    if "refused" not in answer:
        ending.problems.append(f"with {name} damaged it was resumed: {answer}")
    path.write_bytes(whole)
    answer = lane.driver.ask("resume", service=lane.service, order_id=order_id)
    if "refused" in answer:
        ending.problems.append(f"with {name} mended it was not resumed: {answer}")
        return ending
    lane.wait_end(order_id)
    mended = judge(lane, order_id, old)
    return Ending(mended.state, mended.category, mended.exit_code, mended.dark, mended.resumed, ending.problems + mended.problems)


def cases() -> list[Case]:
    """Those of the box, but for SSH's."""
    return [
        *(
            Case(
                SECTION,
                f"{name} damaged",
                partial(_damaged, name=name),
                (State.DONE,),
                how="cut in half while the supervisor is gone; resume refuses, and goes on once it is mended",
            )
            for name in ("agent.zip", "order.json")
        ),
        Case(
            SECTION,
            "container frozen and thawed",
            _frozen,
            (State.DONE,),
            how="the freezer's cgroup (version 1), for longer than the load's deadlines",
        ),
        Case(
            SECTION,
            "child of the old server in state D",
            partial(_stuck, new=False),
            (State.DOWN,),
            exit_code=7,
            how="a freezer of its own",
        ),
        Case(
            SECTION,
            "child of the new server in state D",
            partial(_stuck, new=True),
            (State.DOWN,),
            (Category.STALLED,),
            7,
            how="a freezer of its own",
        ),
        Case(
            SECTION,
            "host OOM kill",
            _out_of_memory,
            (State.RESTORED,),
            (Category.HOST_OOM_KILL,),
            how="the memory cgroup's limit (version 1)",
        ),
        *_restarts(),
    ]
