"""The verb ``profile``: have the server trace a few of its own decode steps under a small steady load, and send the traces.

``POST /start_profile`` (SGLang 0.5.6 to 0.5.23, in 0.5.23 managers/scheduler_components/profiler_manager.py) starts PyTorch's profiler in
every rank and, with ``num_steps``, ends it by itself. It is not asked to do so by stage: that would leave it armed for the next prefill,
whoever's that is. Each rank writes a file ``…-TP-RANK….trace.json.gz`` into ``output_dir``.
"""

import base64
import contextlib
import os
import stat
import tempfile
import threading
import time
import zlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

from orchestrator.agent import sglang, wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.command_lines import is_scheduler
from orchestrator.agent.decode import fresh_prompt
from orchestrator.agent.http import Client, HttpError
from orchestrator.agent.journal import order_status
from orchestrator.agent.processes import Server, find_server
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.stream import read_streams
from orchestrator.agent.survey import address_of, api_key_of
from orchestrator.agent.wire_base import EventKind
from orchestrator.agent.wire_budget import FilePiece, ProfileReport, ProfileRequest
from orchestrator.agent.wire_words import at_work

Emit = Callable[[str, Any], None]

ACTIVITIES = ("CPU", "GPU")
"""The host's side is traced too: only its spans say where a step begins."""
SUFFIX = ".trace.json.gz"

_STATE = "PROFILE"
_PIECE = 1 << 18
_READ = 1 << 20
_START_SECONDS = 90.0
"""The first use of CUPTI takes seconds, in which the server does nothing else."""
_WARM_UP_TOKENS = 24
_LOAD_SECONDS = 6.0
_MOST_TOKENS = 1024
_STOP_SECONDS = 60.0


def profile(request: ProfileRequest, emit: Emit) -> ProfileReport:
    """Trace, and send the files before the answer. Nothing of them stays on the box.

    Raises:
        AgentRefusal: ``locked``: an order is at work on the service. ``refused``: no server, it can't be traced, or no trace came in time.
    """
    folder = StateFolder(request.state_root, request.service)
    order = order_status(folder)
    if order is not None and order.live:
        raise AgentRefusal("locked", at_work(order), next_step="fab attach")
    server = find_server(request.port)
    if server is None or not server.listening:
        raise AgentRefusal("refused", f"no server listens on port {request.port}", next_step="fab status")
    client = Client(request.port, address_of(server), api_key_of(server, folder))
    try:
        with trace_folder(server, request.most_bytes) as written:
            return _Profile(request, emit, client, server, written).report()
    except HttpError as error:
        raise AgentRefusal("refused", f"the server can't be traced: {error}", next_step="fab status; fab logs") from None


class TraceFolder:
    """Where the server writes to, as it sees it (`path`) and as an open folder here: whatever becomes of its name, only it is read."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def names(self) -> List[str]:
        return sorted(name for name in os.listdir(self.descriptor) if name.endswith(SUFFIX))

    def open(self, name: str) -> int:
        """A regular file of the folder. A service's user could put a link there.

        Raises:
            OSError: it is not one.
        """
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(f"{name} is not a regular file")

    def is_whole(self, name: str) -> bool:
        """Whether a compressed file is there to its end: it is written under its own name."""
        unpacker = zlib.decompressobj(wbits=31)
        try:
            with os.fdopen(self.open(name), "rb") as stream:
                for piece in iter(lambda: stream.read(_READ), b""):
                    unpacker.decompress(piece)
        except (OSError, zlib.error):
            return False
        return unpacker.eof


@contextlib.contextmanager
def trace_folder(server: Server, most_bytes: int) -> Iterator[TraceFolder]:
    """A folder in the server's own /tmp, which may be another than ours (PrivateTmp=), for its user alone; gone at the end.

    Raises:
        AgentRefusal: ``refused``: there is no room, or it can't be made.
    """
    temporary = f"/proc/{server.main.pid}/root/tmp"
    try:
        status = os.statvfs(temporary)
        free = status.f_bavail * status.f_frsize
        if free < 2 * most_bytes:
            raise AgentRefusal(
                "refused", f"{free >> 20} MiB are free in the server's /tmp, {2 * most_bytes >> 20} MiB are needed for a trace"
            )
        made = tempfile.mkdtemp(prefix="orchestrator-profile-", dir=temporary)
    except OSError as error:
        raise AgentRefusal("refused", f"no folder can be made in the server's /tmp: {error.strerror}", next_step="df /tmp") from None
    descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if server.main.user_id != os.geteuid():
            os.chown(descriptor, server.main.user_id, -1)
        yield TraceFolder(f"/tmp/{os.path.basename(made)}", descriptor)  # noqa: S108 - in the server's namespace, made above
    finally:
        for name in os.listdir(descriptor):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=descriptor)
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.rmdir(made)


class _Profile:
    """One profile under way."""

    def __init__(self, request: ProfileRequest, emit: Emit, client: Client, server: Server, folder: TraceFolder) -> None:
        self._request = request
        self._emit = emit
        self._client = client
        self._folder = folder
        self._began = time.monotonic()
        self._deadline = Deadline(request.seconds)
        self._ranks = ranks_of(server)
        self._disturbed: List[str] = []
        self._remarks: List[str] = []

    def report(self) -> ProfileReport:
        """Do it all.

        Raises:
            HttpError: the server does not answer rightly.
            AgentRefusal: no trace came.
        """
        request = self._request
        facts = sglang.server_facts(self._client)
        if sglang.running_and_queued(self._client):
            self._disturbed.append("others' requests ran or waited when it began: their steps may be in the trace")
        self._tell("warm-up", f"batch {request.batch_size}")
        self._stream(_WARM_UP_TOKENS)
        per_token = self._stream(_WARM_UP_TOKENS) / _WARM_UP_TOKENS
        tokens = load_tokens(per_token, request, facts.max_total_num_tokens)
        with self._load(tokens) as failures:
            self._wait_decoding(per_token)
            names = self._trace()
        self._remarks += failures
        sent = [name for name in names if self._send(name)]
        return ProfileReport(
            files=sent,
            sglang=facts.version,
            batch_size=request.batch_size,
            steps=request.steps,
            activities=list(ACTIVITIES),
            ranks=self._ranks,
            seconds=time.monotonic() - self._began,
            disturbed=self._disturbed,
            remarks=self._remarks,
        )

    def _stream(self, tokens: int) -> float:
        """Run all streams once and return how long they took.

        Raises:
            HttpError: one broke off.
        """
        begun = time.monotonic()
        words = max(4, self._request.input_tokens // 4)  # few words are less than that many tokens, whatever the tokenizer
        bodies: List[Dict[str, Any]] = [
            {
                "text": fresh_prompt(words),
                "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": tokens},
                "stream": True,
            }
            for _ in range(self._request.batch_size)
        ]
        for exchange in read_streams(self._client, "/generate", bodies, max(1.0, self._deadline.left())).exchanges:
            exchange.events()
        return time.monotonic() - begun

    @contextlib.contextmanager
    def _load(self, tokens: int) -> Iterator[List[str]]:
        """Streams beside what is done within; what went wrong with them."""
        failures: List[str] = []

        def run() -> None:
            try:
                self._stream(tokens)
            except HttpError as error:
                failures.append(f"a stream of the load failed: {error}")

        thread = threading.Thread(target=run, name="load", daemon=True)
        thread.start()
        try:
            yield failures
        finally:
            wait_until(lambda: not thread.is_alive(), Deadline(max(1.0, self._deadline.left())))

    def _wait_decoding(self, per_token: float) -> None:
        """Until all streams run and their prompts are likely to be done; a trace that has other steps too is read all the same."""
        wait_until(lambda: (sglang.running_and_queued(self._client) or 0) >= self._request.batch_size, Deadline(_LOAD_SECONDS / 3), 0.05)
        time.sleep(min(1.0, 8 * per_token))

    def _trace(self) -> List[str]:
        """Start the profiler and wait until every rank has written its file.

        Raises:
            HttpError: it can't be started.
            AgentRefusal: not a single file came.
        """
        asked = {"output_dir": self._folder.path, "num_steps": self._request.steps, "activities": list(ACTIVITIES)}
        self._tell("trace", f"{self._request.steps} steps of {self._ranks} rank(s)")
        answer = self._client.post("/start_profile", {**asked, "with_stack": False, "record_shapes": False}, _START_SECONDS)
        if answer.status != 200:
            said = answer.text().strip()[:300]
            hint = "; with an admin key only that key may start it" if answer.status in (401, 403) else ""
            raise AgentRefusal("refused", f"/start_profile: HTTP {answer.status} {said}{hint}", next_step="fab logs")
        whole: Set[str] = set()
        try:
            wait_until(lambda: self._is_written(whole), self._deadline, 0.25)
        finally:
            if len(whole) < self._ranks:
                self._stop()
        self._is_written(whole)
        if not whole:
            raise AgentRefusal("refused", f"no trace was written within {self._request.seconds:g} s", next_step="fab logs; more --limit")
        if len(whole) < self._ranks:
            self._remarks.append(f"{len(whole)} of {self._ranks} ranks have written a trace in time")
        return sorted(whole)

    def _is_written(self, whole: Set[str]) -> bool:
        whole.update(name for name in self._folder.names() if name not in whole and self._folder.is_whole(name))
        return len(whole) >= self._ranks

    def _stop(self) -> None:
        """A profiler that nobody stops slows the server down and fills its memory."""
        with contextlib.suppress(HttpError):
            self._client.post("/stop_profile", {}, _STOP_SECONDS)

    def _send(self, name: str) -> bool:
        with os.fdopen(self._folder.open(name), "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > self._request.most_bytes:
                limit = self._request.most_bytes >> 20
                self._remarks.append(f"{name} has {size >> 20} MiB, more than {limit} MiB: left out; fewer steps make it smaller")
                return False
            self._tell("fetch", f"{name}, {size / (1 << 20):.1f} MiB")
            left = size
            while left > 0:
                piece = stream.read(min(_PIECE, left))
                if not piece:
                    break
                left -= len(piece)
                self._emit(EventKind.FILE, FilePiece(name, base64.b64encode(piece).decode("ascii"), last=left <= 0))
        return True

    def _tell(self, phase: str, detail: str) -> None:
        self._emit(EventKind.PROGRESS, wire.Progress(_STATE, phase, time.monotonic() - self._began, detail))


def load_tokens(per_token: float, request: ProfileRequest, capacity: Optional[int]) -> int:
    """How many tokens each stream of the load generates: some seconds' worth, never more than the KV cache holds."""
    wanted = max(4 * request.steps + 32, min(_MOST_TOKENS, int(_LOAD_SECONDS / max(per_token, 1e-4))))
    room = _MOST_TOKENS if capacity is None else capacity // request.batch_size - request.input_tokens - 64
    return max(request.steps + 8, min(wanted, room))


def ranks_of(server: Server) -> int:
    """How many schedulers the server has: each writes a trace."""
    titled = sum(1 for member in server.members if is_scheduler(member))
    return titled or sglang.scheduler_count(list(server.main.arguments))
