"""What verbs and checks are by hand: the shell commands that a person types when this program can't run. The one place for them.

They use shell variables that :func:`orchestrator.cli.runbook_markdown.markdown_lines` sets from the inventory: ``SERVICE``, ``PORT``,
``PYTHON`` (the one that has SGLang), ``MODEL``, ``STATE`` (the service's state folder) and ``CT`` (the container, as the host's tool
calls it). Reading commands come with what they should show; what changes something says why it is done so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

At = Literal["host", "place", "here"]

Arguments = Mapping[str, str | bool]
"""Of a step, as shell words: an input stands as its variable."""


@dataclass(frozen=True)
class Typed:
    """Commands that are typed in one place: on the host, where SGLang runs (`place`), or at the operator's machine (`here`)."""

    at: At
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.strip("\n").splitlines()


def verb_by_hand(verb: str, arguments: Arguments) -> list[Typed]:
    """The commands that do what a verb does; none where nobody has written them down."""
    return [Typed(at, text(arguments) if callable(text) else text) for at, text in _VERBS.get(verb, ())]


def check_by_hand(check: str, arguments: Arguments) -> list[Typed]:
    """The commands by which a check is made."""
    return [Typed(at, text(arguments) if callable(text) else text) for at, text in _CHECKS[check]]


_FIND = """\
PID=$(ss -Hltnp "sport = :$PORT" | grep -o 'pid=[0-9]*' | head -n 1 | cut -d= -f2); echo "server: ${PID:-none}"
"""

_STATUS = (
    _FIND
    + """\
[ -n "$PID" ] && ps -o pid,user,lstart,unit,args -p "$PID"
curl -sS -m 30 -o /dev/null -w 'health %{http_code}\\n' "http://127.0.0.1:$PORT/health"   # 200; it makes a token, which takes 1 s
nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv
ls -t "$STATE/orders" | head -n 1; tail -n 1 "$STATE/orders/$(ls -t "$STATE/orders" | head -n 1)/journal.jsonl"   # the newest change
cat "$STATE/held.json" 2>/dev/null   # a person's lock: who, why
"""
)

_KEEP = (
    "# find it, and keep how it was started; where there is none, go on with its start\n"
    + _FIND
    + """\
mkdir -m 700 -p /root/before && cp "/proc/${PID:?there is none}/cmdline" "/proc/$PID/environ" /root/before/   # secrets are in them
readlink "/proc/${PID:?there is none}/cwd" > /root/before/cwd; ps -o user= -p "$PID" > /root/before/user
ps -o unit= -p "${PID:?there is none}"   # somebody's unit? Then: systemctl stop UNIT, and start it later
"""
)


def _stop(seconds: str) -> str:
    """The end of a server that :data:`_KEEP` has found; SIGKILL may follow after that many seconds."""
    return f"""\
# stop it
rm -f "$STATE/boot"   # from now on no unit of ours starts it again
SID=$(ps -o sid= -p "${{PID:?there is none}}" | tr -d ' ')
kill -TERM "${{PID:?there is none}}"   # the main process alone: it drains. SIGTERM to the group cuts every stream
for second in $(seq {seconds}); do kill -0 "${{PID:?}}" 2>/dev/null || break; sleep 1; done   # it polls every 5 s, its schedulers have 15 s
ps -o pid,stat,etime,args -s "${{SID:?}}"   # what is left. A shell of yours in the list stays; the rest: kill -KILL PID PID ...
# look that nothing is left
ss -Hltn "sport = :$PORT"   # must show nothing
nvidia-smi --query-gpu=index,memory.used --format=csv   # must be back at what it was; that can take 60 s after a SIGKILL
"""


_PATIENT = "55"


def _stop_within(arguments: Arguments) -> str:
    grace = arguments.get("grace", _PATIENT)
    return _KEEP + _stop(f'"{grace}"' if str(grace).startswith("$") else str(grace))


_REMEMBERED_LAUNCHES = """\
# which launch: those with a verified.json were proven to serve; the last line names the one that was last
ls -t "$STATE"/launches/*/verified.json; cat "$STATE/verified"
"""

_CHOOSE = """\
# choose one
LAUNCH="$STATE/launches/FILL_IN"   # after a crash or a reboot the last one; to go back from what serves, one before it
"""

_AGAIN = """\
# start it again. The one that was last, where there is a unit whose description names it:
systemctl show --property Description "orchestrator-$SERVICE.service"
cat "$STATE/verified" > "$STATE/boot" && systemctl start "orchestrator-$SERVICE.service"; LOG="$LAUNCH/server.log"
# any other, and without systemd, from its record. Read the script before it is run
python3 - "$LAUNCH" > /root/start-again.sh <<'END'
import json, os, shlex, sys
folder = sys.argv[1]
launch = json.load(open(folder + "/launch.json"))
if not os.path.exists(folder + "/environment"):
    sys.exit("adopted, and never started by the program: its arguments, environment and secrets are in " + folder + "/launch.json")
words, config = launch["arguments"], folder + "/config.yaml"
if os.path.exists(config):   # it holds the API key, and all of a --config of its own
    own = words.index("--config") if "--config" in words else len(words)
    words = words[:own] + words[own + 2:] + ["--config", config]
words = ["runuser", "-u", launch.get("user") or "root", "--", launch["python"], *launch["entry"], *words]
print("set -a; .", shlex.quote(folder + "/environment") + "; set +a; cd", shlex.quote(launch.get("directory") or "/"))
print("exec", shlex.join(words))
END
cat /root/start-again.sh
# run it; no unit starts it again until fab boot --on
LOG="/var/log/sglang-$SERVICE.log"; setsid nohup sh /root/start-again.sh > "$LOG" 2>&1 < /dev/null &
"""

_READY = """\
# prove it
tail -n 5 "$LOG"   # neither "fired up" nor a 200 alone proves it: an old server may answer on that port
until curl -fsS -m 30 "http://127.0.0.1:$PORT/health"; do sleep 5; done; echo healthy
ss -Hltnp "sport = :$PORT"   # the process that you started
curl -fsS -m 120 "http://127.0.0.1:$PORT/generate" -H 'Content-Type: application/json' \\
  -d '{"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}'   # read it: words, not noise
"""

_KEY = '# with an API key every curl but /health needs: -H "Authorization: Bearer $KEY"\n'


def _rollback(arguments: Arguments) -> str:
    if arguments.get("list"):
        return _REMEMBERED_LAUNCHES
    return _REMEMBERED_LAUNCHES + _CHOOSE + _stop_within(arguments) + _AGAIN + _READY + _KEY


def _with_backend(arguments: Arguments) -> str:
    backend = arguments.get("backend", "BACKEND")
    return f"""\
# write a script that starts the same again
python3 - > /root/before/start.sh <<'END'
import shlex
def words(name):
    return open("/root/before/" + name).read().split("\\0")[:-1]
def line(name):
    return open("/root/before/" + name).readline().strip()
kept = [word for word in words("environ") if not word.startswith("ORCHESTRATOR_LAUNCH=")]   # it is another launch
print("cd", shlex.quote(line("cwd")))
print("exec runuser -u", shlex.quote(line("user")), "-- env -i", shlex.join(kept), "\\\\")
print(" ", shlex.join(words("cmdline")))
END
# change only what the profile {backend} sets: its flags are in inventory/backends/, and SGLang takes a wrong abbreviation for another flag
${{EDITOR:-vi}} /root/before/start.sh
# start the new one
LOG="/var/log/sglang-$SERVICE.log"; setsid nohup sh /root/before/start.sh > "$LOG" 2>&1 < /dev/null &
"""


def _launch(arguments: Arguments) -> str:
    return """\
ss -Hltn "sport = :$PORT"   # must show nothing
# start it. FLAGS: arguments: of the service's file, and what its backend profile sets
LOG="/var/log/sglang-$SERVICE.log"
setsid nohup env SPT_NOENV=1 no_proxy=127.0.0.1,localhost "$PYTHON" -m sglang.launch_server --model-path "$MODEL" --port "$PORT" \\
  FLAGS > "$LOG" 2>&1 < /dev/null &
"""


def _preflight(arguments: Arguments) -> str:
    return f"""\
"$PYTHON" -c 'import importlib.metadata as m; print("sglang", m.version("sglang"), "flashinfer", m.version("flashinfer-python"))'
"$PYTHON" -m sglang.launch_server --help 2>/dev/null | grep -A3 moe-runner-backend   # is {arguments.get("backend", "BACKEND")} a choice?
nvidia-smi --query-gpu=index,name,compute_cap,memory.free --format=csv
"""


_DOCTOR_HOST = """\
dmesg -T | grep -E 'NVRM: Xid|AER|fallen off' | tail -n 20   # 79: off the bus; 48, 94, 95: ECC; 119, 120: GSP; 74: NVLink
cat /proc/driver/nvidia/version; grep nvidia /proc/devices   # absent: the module is not loaded (DKMS after a kernel update?)
lspci -d 10de: | grep -iE 'vga|3d'   # as many as there must be
nvidia-smi --query-gpu=pci.bus_id,pcie.link.width.current,pcie.link.width.max --format=csv   # less than max is a fault
nvidia-smi --query-gpu=index,ecc.errors.uncorrected.volatile.total,persistence_mode --format=csv
ps -eo pid,stat,wchan:20,args | awk '$2 ~ /^D/'   # processes that hang in the kernel
"""

_CUDA = """\
ls -l /dev/nvidia*   # character devices, each major as in /proc/devices; an empty file or a wrong major: restart the container
grep nvidia /proc/devices; nvidia-smi -L   # this proves nothing about CUDA: it exits 0 also without /dev/nvidia-uvm
timeout 20 "$PYTHON" -c 'import ctypes
cuda, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print("cuInit", cuda.cuInit(0), "GPUs", cuda.cuDeviceGetCount(ctypes.byref(number)) or number.value)'   # cuInit 0 and all GPUs
ls -l /usr/lib/*/libcuda.so.*.*; cat /proc/driver/nvidia/version   # the same version in both, or cuInit is 803
"""

_PREP = """\
sysctl -w kernel.numa_balancing=0 vm.swappiness=10   # what inventory/tuning/ says of this host; these are the shipped profile's
for policy in /sys/devices/system/cpu/cpufreq/policy*; do echo performance > "$policy/scaling_governor"; done
for latency in /sys/devices/system/cpu/cpu[0-9]*/power/pm_qos_resume_latency_us; do echo 99 > "$latency"; done
nvidia-smi -pm 1   # better: systemctl enable --now nvidia-persistenced
for gpu in $(lspci -Dd 10de: | grep -iE 'vga|3d' | cut -d' ' -f1); do setpci -s "$gpu" CAP_EXP+8.w=5000:7000; done   # MaxReadReq 4096
"""

_PREP_READ = """\
sysctl kernel.numa_balancing vm.swappiness   # 0 and 10; no exit status of these tools is to be believed, so read back
sort /sys/devices/system/cpu/cpufreq/policy*/scaling_governor | uniq -c
sort /sys/devices/system/cpu/cpu[0-9]*/power/pm_qos_resume_latency_us | uniq -c
nvidia-smi --query-gpu=pci.bus_id,persistence_mode --format=csv
for gpu in $(lspci -Dd 10de: | grep -iE 'vga|3d' | cut -d' ' -f1); do lspci -s "$gpu" -vvv | grep -o 'MaxReadReq [0-9]* bytes'; done
"""


def _measure(arguments: Arguments) -> str:
    given = str(arguments.get("batch", "1,4,16"))
    sizes = f"${{{given[1:]}//,/ }}" if given.startswith("$") else given.replace(",", " ")
    return f"""\
"$PYTHON" -m sglang.bench_one_batch_server --model None --base-url "http://127.0.0.1:$PORT" --batch-size {sizes} \\
  --input-len 256 --output-len 256 --show-report   # without --base-url it would time whatever it finds; do it three times
nvidia-smi --query-gpu=index,clocks.sm,power.draw,pcie.link.gen.current,clocks_event_reasons.active --format=csv   # while it runs
"""


def _sweep(arguments: Arguments) -> str:
    backends = arguments.get("backends", "BACKENDS")
    head = f"# for each of {backends} in turn, then backwards (A B B A), all that follows; at the end once more for what served before\n"
    return head + _stop_within(arguments) + _with_backend({}) + _READY + "# time it\n" + _measure(arguments) + _KEY


_BUDGET = """\
du -sh "$MODEL"   # a step reads this, divided by the GPUs, once (of a mixture of experts only those that are chosen, at small batches)
nvidia-smi --query-gpu=index,name,clocks.mem,clocks.max.mem --format=csv   # by the bandwidth: the time that no step can be faster than
nvidia-smi topo -m   # what an all-reduce goes over: NV# is NVLink, PIX and PXB a PCIe switch, SYS the link between the sockets
"""

_PROFILE = """\
curl -fsS -m 300 "http://127.0.0.1:$PORT/generate" -H 'Content-Type: application/json' \\
  -d '{"text": "Count to a thousand.", "sampling_params": {"max_new_tokens": 512, "ignore_eos": true}}' > /dev/null &
curl -fsS -X POST "http://127.0.0.1:$PORT/start_profile" -H 'Content-Type: application/json' \\
  -d '{"output_dir": "/tmp/sglang-trace", "num_steps": 8, "activities": ["CPU", "GPU"]}'   # it ends by itself after 8 steps
wait; ls -l /tmp/sglang-trace   # *.trace.json.gz, one a rank: open one in ui.perfetto.dev, and remove them after
"""


def _compare(arguments: Arguments) -> str:
    return """\
# put the output throughputs side by side, batch size by batch size. Launches of the same server differ by about 1 %, often by
# more: less than that says nothing, and one launch a side can't show it.
"""


def _lock(arguments: Arguments) -> str:
    why = arguments.get("message", "WHY")
    return f"""\
echo "$(whoami)@$(hostname) $(date -u +%FT%TZ): {why}" > "$STATE/BY-HAND"   # no program minds this: tell the others as well
"""


_CAN_COME_BACK = """\
cat "$STATE/boot"; systemctl is-enabled "orchestrator-$SERVICE.service"   # a launch's id, and enabled: it comes back by itself
"""

_Text = str | Callable[[Arguments], str]

_VERBS: Mapping[str, tuple[tuple[At, _Text], ...]] = {
    "status": (("place", _STATUS),),
    "logs": (("place", 'tail -n 200 "$STATE/launches/$(ls -t "$STATE/launches" | head -n 1)/server.log"   # it may show the API key\n'),),
    "doctor": (("host", _DOCTOR_HOST), ("place", _CUDA)),
    "preflight": (("place", _preflight),),
    "relaunch": (("place", _stop_within), ("place", _with_backend), ("place", _READY + _KEY)),
    "launch": (("place", _launch), ("place", _READY + _KEY)),
    "teardown": (("place", _stop_within),),
    "rollback": (("place", _rollback),),
    "resume": (
        (
            "place",
            'tail -n 5 "$STATE/orders/$(ls -t "$STATE/orders" | head -n 1)/journal.jsonl"   # how far it had come\n'
            + _FIND
            + "# finish by hand what the journal says was begun: a stop (see teardown), then a start (see rollback)\n",
        ),
    ),
    "prep": (("host", _PREP), ("host", _PREP_READ)),
    "measure": (("place", _measure),),
    "sweep": (("place", _sweep),),
    "budget": (("place", _BUDGET),),
    "profile": (("place", _PROFILE),),
    "compare": (("here", _compare),),
    "adopt": (("place", _KEEP + 'tr "\\0" " " < /root/before/cmdline; echo   # arguments: of a new file in inventory/services/\n'),),
    "boot": (("place", _CAN_COME_BACK),),
    "lock.acquire": (("place", _lock),),
    "lock.release": (("place", 'cat "$STATE/BY-HAND"; rm -f "$STATE/BY-HAND"\n'),),
    "lock.status": (("place", 'cat "$STATE/held.json" "$STATE/BY-HAND" 2>/dev/null\n'),),
}


def _serves(arguments: Arguments) -> str:
    backend = arguments.get("backend")
    more = f'tr "\\0" "\\n" < "/proc/$PID/cmdline" | grep -A1 moe-runner-backend   # {backend}\n' if backend else ""
    return _FIND + more + "".join(_READY.partition("until")[1:]) + _KEY


_NEWEST_ORDER = 'tail -n 1 "$STATE/orders/$(ls -t "$STATE/orders" | head -n 1)/journal.jsonl"   # DONE, RESTORED or REFUSED\n'
_NOTHING_THERE = 'ss -Hltnp "sport = :$PORT"   # nothing\nnvidia-smi --query-compute-apps=pid,used_memory --format=csv\n'
_REMEMBERED = 'cat "$STATE/verified"; ls "$STATE/launches"   # the launch verified last, and all that are remembered\n'

_CHECKS: Mapping[str, tuple[tuple[At, _Text], ...]] = {
    "serves": (("place", _serves),),
    "nothing_serves": (("place", _NOTHING_THERE),),
    "no_order": (("place", _NEWEST_ORDER),),
    "finding_absent": (("host", _DOCTOR_HOST), ("place", _CUDA)),
    "finding_passes": (("host", _DOCTOR_HOST), ("place", _CUDA)),
    "nothing_refused": (("host", _DOCTOR_HOST), ("place", _CUDA)),
    "no_drift": (("host", _PREP_READ),),
    "comes_back": (("place", _CAN_COME_BACK),),
    "previous_launch": (("place", _REMEMBERED),),
}
