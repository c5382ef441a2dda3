"""Many hosts at once over OpenSSH: some answer, one refuses, one says nothing, one has another key; none of them harms another."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.rig.commands import wait_for
from tests.rig.documents import checked
from tests.rig.inventory import write_inventory, write_service
from tests.rig.operator import Operator
from tests.ssh.openssh import OpenSsh, free_port
from tests.ssh.test_prep_openssh import listener_that_never_speaks, make_operator

GOOD = [f"h{number}" for number in range(8)]


def lines(operator: Operator, *words: str, timeout: float = 120) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, a document a line, and what went to standard error."""
    done = subprocess.run(
        operator._argv(*words),
        env=operator._environment(),
        cwd=operator.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return done.returncode, [checked(line) for line in done.stdout.splitlines()], done.stderr


@contextmanager
def in_trouble(server: OpenSsh, folder: Path, start_server: Callable[..., OpenSsh]) -> Iterator[Operator]:
    """Eight hosts that answer, and one each that refuses, says nothing, and shows another key than the one that is trusted."""
    impostor = start_server()
    with listener_that_never_speaks() as silent:
        extra = {"dead": {"port": free_port()}, "silent": {"port": silent}, "impostor": {"port": impostor.port}}
        operator = make_operator(folder, server, extra)
        with (operator.inventory / "known_hosts").open("a", encoding="utf-8") as stream:
            stream.writelines(server.known_hosts_lines(impostor.port))
        with (operator.inventory / "hosts.yml").open("a", encoding="utf-8") as stream:
            stream.write("groups:\n  good: [h0, h1]\n  some: [good, dead]\n")
        yield operator


def test_each_has_its_own_end_and_the_worst_code_counts(server: OpenSsh, tmp_path: Path, start_server: Callable[..., OpenSsh]) -> None:
    with in_trouble(server, tmp_path, start_server) as operator:
        begun = time.monotonic()
        code, documents, said = lines(operator, "status", "--all")
        seconds = time.monotonic() - begun

    codes = {item["host"]: item["exit_code"] for item in documents}
    assert (code, codes) == (4, {**dict.fromkeys(GOOD, 0), "dead": 4, "silent": 4, "impostor": 4}), (said, documents)
    assert {(item["schema"], item["verb"]) for item in documents} == {("1", "status")}
    told = {item["host"]: item["error"] for item in documents if item["error"] is not None}
    assert "refuses connections" in told["dead"]["message"]
    assert "showed no SSH banner within 10 s" in told["silent"]["message"]
    assert told["impostor"]["next_step"].startswith("fab trust") or "key" in told["impostor"]["message"]
    assert all(item["boot"]["host"] == item["host"] for item in documents if item["exit_code"] == 0)
    assert "Traceback" not in said
    assert seconds < 60


def test_groups_lists_and_one_alone(server: OpenSsh, tmp_path: Path, start_server: Callable[..., OpenSsh]) -> None:
    with in_trouble(server, tmp_path, start_server) as operator:
        assert [item["host"] for item in sorted(lines(operator, "status", "--host", "good")[1], key=lambda item: item["host"])] == [
            "h0",
            "h1",
        ]
        code, documents, _ = lines(operator, "status", "--host", "h5,some")
        assert (code, {item["host"] for item in documents}) == (4, {"h0", "h1", "h5", "dead"})
        alone = operator.ask("status", "--host", "h3").expect(0)
        assert alone.document["host"] == "h3"
        shown = operator.show("doctor", "--host", "good", "--forks", "1")
        assert re.search(r"^  h0 +(in order|would be refused) ", shown.stdout, re.MULTILINE), shown.stdout
        assert "2 hosts: " in shown.stdout.splitlines()[-1]


def test_many_services_and_locks(server: OpenSsh, tmp_path: Path) -> None:
    operator = make_operator(tmp_path, server)
    for number in range(4):
        service = {"host": f"h{number // 2}", "place": "host", "port": 31100 + number, "model": "/m", "python": "/usr/bin/python3"}
        write_service(operator.inventory, f"s{number}", service)
    code, documents, _ = lines(operator, "status", "--host", "h0,h1,h2")
    assert code == 0
    assert sorted((item["host"], item["service"] or "") for item in documents) == [
        ("h0", "s0"),
        ("h0", "s1"),
        ("h1", "s2"),
        ("h1", "s3"),
        ("h2", ""),
    ]
    assert {item["report"]["health"] for item in documents if item["service"]} == {"down"}
    code, documents, said = lines(operator, "lock.status", "--all")
    assert (code, len(documents)) == (0, 4)
    assert "left out, as they have no service: h2, h3" in said
    code, documents, _ = lines(operator, "boot", "--host", "h0,h1")
    assert (code, [item["report"]["unit"] for item in documents]) == (0, [None] * 4)


def test_ctrl_c_ends_within_a_second_with_what_is_known(server: OpenSsh, tmp_path: Path) -> None:
    with listener_that_never_speaks() as silent:
        operator = make_operator(tmp_path, server, {f"silent{number}": {"port": silent} for number in range(3)})
        done = subprocess.Popen(
            operator._argv("status", "--all"),
            env=operator._environment(),
            cwd=operator.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert done.stdout is not None
        first = [checked(done.stdout.readline()) for _ in GOOD]
        begun = time.monotonic()
        done.send_signal(signal.SIGINT)
        rest, said = done.communicate(timeout=30)
        seconds = time.monotonic() - begun

    assert {item["host"] for item in first} == set(GOOD)
    cut_off = [checked(line) for line in rest.splitlines()]
    assert {item["host"]: item["error"]["exit_code"] for item in cut_off} == {f"silent{number}": 130 for number in range(3)}
    assert done.returncode == 130, said
    assert seconds < 1.5  # one, and what a busy machine takes


def test_a_terminal_has_one_live_table(server: OpenSsh, tmp_path: Path) -> None:
    operator = make_operator(tmp_path, server)
    argv = [word for word in operator._argv("status", "--host", "h0,h1,h2") if word != "--json"]
    main, secondary = pty.openpty()
    process = subprocess.Popen(
        argv,
        env=operator._environment() | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        cwd=operator.home,
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        start_new_session=True,
    )
    os.close(secondary)
    seen = b""
    with os.fdopen(main, "rb", buffering=0) as stream:
        try:
            while piece := stream.read(65536):
                seen += piece
        except OSError:  # Linux says EIO once nobody holds the other end
            pass
    assert process.wait(30) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
    assert "asking h" in text
    final = text[text.rindex("  host  is") :].splitlines()
    assert [line.split()[0] for line in final[1:4]] == ["h0", "h1", "h2"]
    assert final[-1] == "3 hosts: 3 no service"


def test_hosts_behind_one_jump_host_log_in_there_once(tmp_path: Path, start_server: Callable[..., OpenSsh]) -> None:
    """Its sshd takes one login at a time (MaxStartups 1), and no session at all."""
    jump = start_server(options=("MaxStartups 1", "MaxSessions 0"))
    behind = start_server()
    login = {"address": "127.0.0.1", "user": os.environ.get("USER", "root"), "agent": False}
    hosts = {"jump": {**login, "port": jump.port, "identity_files": [str(jump.key)]}}
    hosts |= {f"b{n}": {**login, "port": behind.port, "identity_files": [str(behind.key)], "jump": "jump"} for n in range(6)}
    known = "".join([*jump.known_hosts_lines(), *behind.known_hosts_lines()])
    operator = Operator(write_inventory(tmp_path / "inventory", hosts, known), tmp_path)
    code, documents, said = lines(operator, "status", "--host", ",".join(f"b{n}" for n in range(6)))
    assert (code, len(documents)) == (0, 6), said
    log = (jump.folder / "sshd.log").read_text(encoding="utf-8")
    assert log.count("Accepted publickey") == 1


def test_a_jump_host_that_does_not_answer_is_tried_once(server: OpenSsh, tmp_path: Path) -> None:
    knocks = 0

    def hang_up(listener: socket.socket) -> None:
        nonlocal knocks
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            knocks += 1
            silent.append(taken)

    silent: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=hang_up, args=(listener,), daemon=True).start()
        extra = {"jump": {"port": listener.getsockname()[1]}, **{f"b{n}": {"port": server.port, "jump": "jump"} for n in range(6)}}
        operator = make_operator(tmp_path, server, extra)
        begun = time.monotonic()
        code, documents, _ = lines(operator, "status", "--host", ",".join(["h0", *(f"b{n}" for n in range(6))]))
        seconds = time.monotonic() - begun
        wait_for("the knock", lambda: knocks > 0, 5)
    for taken in silent:
        taken.close()
    assert code == 4
    assert {item["host"]: item["exit_code"] for item in documents} == {"h0": 0, **{f"b{n}": 4 for n in range(6)}}
    assert knocks == 1
    assert seconds < 30
