"""What a relaunch would change besides the backend: the running server against the candidate.

Arguments are compared by the names of SGLang's parser, so that a default equals the same value spelled out; the environment by
variable. Each difference has an origin: the backend profile, a sweep, this program, or *drift*, which nobody may revert in passing.
"""

import json
import os
from dataclasses import dataclass, field
from typing import AbstractSet, Any, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from orchestrator.agent import wire
from orchestrator.agent.arguments import ParsedCommand, textual_name
from orchestrator.agent.command_lines import GATE_FLAG
from orchestrator.agent.scrub import is_secret_argument, is_secret_variable, mask_patterns

SECRET = "<secret>"  # noqa: S105 - what is shown in its place
OTHER_SECRET = "<another secret>"  # noqa: S105

ALWAYS_COUNTS = ("SGLANG_", "SGL_", "NCCL_", "CUDA_", "TORCH", "FLASHINFER_", "HF_", "OMP_", "TRITON_", "NVIDIA_", "LD_")
"""Prefixes of variables that change what a server does; none of them is ever taken for a session's noise."""

NOISE = frozenset(
    {
        # who, where, which terminal: set by login, sudo, cron and shells
        *("PATH", "PWD", "OLDPWD", "HOME", "USER", "LOGNAME", "USERNAME", "SHELL", "SHLVL", "_", "MAIL", "HOSTNAME", "HOSTTYPE"),
        *("OSTYPE", "MACHTYPE", "TERM", "TERMCAP", "COLORTERM", "COLUMNS", "LINES", "DISPLAY", "EDITOR", "VISUAL", "PAGER", "IFS"),
        *("PS1", "PS2", "PS4", "PROMPT_COMMAND", "LS_COLORS", "LS_OPTIONS", "LSCOLORS", "GREP_COLORS", "WINDOWID", "MOTD_SHOWN"),
        *("SUDO_COMMAND", "SUDO_USER", "SUDO_UID", "SUDO_GID", "SUDO_HOME", "SUDO_PS1", "DEBIAN_FRONTEND", "NVM_DIR", "PYENV_ROOT"),
        # the language of messages (SGLang's log is in English whatever it is)
        *("LANG", "LANGUAGE"),
        # where other programs than the server look
        *("MANPATH", "INFOPATH", "CDPATH", "FPATH", "GOPATH", "NODE_PATH"),
        # the interpreter is compared by itself
        *("VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_DEFAULT_ENV", "CONDA_PROMPT_MODIFIER", "CONDA_SHLVL", "CONDA_EXE"),
        *("CONDA_PYTHON_EXE", "_CE_CONDA", "_CE_M"),
        # systemd.exec(5), sd_notify(3) and lxc's own
        *("INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "MAINPID", "MANAGERPID", "MANAGERPIDFDID", "MEMORY_PRESSURE_WATCH"),
        *("MEMORY_PRESSURE_WRITE", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID", "WATCHDOG_USEC", "container"),
        *("container_uuid", "container_ttys", "CREDENTIALS_DIRECTORY", "STATE_DIRECTORY", "LOGS_DIRECTORY", "CACHE_DIRECTORY"),
        *("RUNTIME_DIRECTORY", "CONFIGURATION_DIRECTORY", "EXIT_CODE", "EXIT_STATUS", "SERVICE_RESULT"),
        # screen and tmux
        *("TMUX", "TMUX_PANE", "STY", "WINDOW"),
    }
)
NOISE_PREFIXES = ("SSH_", "LC_", "XDG_", "SYSTEMD_", "LESS", "DBUS_", "HIST", "BASH_", "ZSH_", "TMUX_", "VSCODE_", "GPG_", "_P9K_")
"""With :data:`NOISE`, the closed list of what a session leaves in a server's environment without any effect on it."""

STEERING_PREFIXES = (
    *ALWAYS_COUNTS,
    *("PYTHON", "PYTORCH_", "TRANSFORMERS_", "TOKENIZERS_", "VLLM_", "DG_", "CUBLAS", "CUDNN_", "CUTE_", "CUTLASS_", "TVM_", "UCX_"),
    *("GLOO_", "TP_SOCKET_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "MALLOC_", "GLIBC_", "NUMA"),
)
"""Variables that are known to change what a server does, wherever it got them; with proxies and search paths, see :func:`steers`."""

OURS = frozenset({"ORCHESTRATOR_LAUNCH", "SPT_NOENV"})
"""Variables that this program adds to what it starts (runner.py)."""

_GATE = textual_name(GATE_FLAG)
PROXY_EXCEPTIONS = frozenset({"no_proxy", "NO_PROXY"})
LOOPBACK = frozenset({"127.0.0.1", "localhost", "0.0.0.0", "::1", "[::1]", "::", "[::]"})  # noqa: S104 - names, nothing binds

ORIGINS = ("backend", "sweep", "drift", "inherited", "ours")
"""The values of :attr:`wire.Difference.origin`, in the order in which differences are listed."""


@dataclass(frozen=True)
class Side:
    """One of the two servers compared. `python` and `user` None are not compared.

    `from_login`: somebody started it by hand, so that its environment is a login's, with whatever that happened to hold.
    """

    arguments: ParsedCommand
    environment: Mapping[str, str]
    python: Optional[str] = None
    user: Optional[str] = None
    from_login: bool = False


@dataclass(frozen=True)
class ProfileNames:
    """What backend profiles set, on either side: parser's names of arguments, and variables.

    `swept` are the arguments of the candidate's own sweep. Those of an earlier one are not here: what it has left running is somebody's
    choice, which no other relaunch may revert in passing.
    """

    arguments: FrozenSet[str] = frozenset()
    environment: FrozenSet[str] = frozenset()
    swept: FrozenSet[str] = frozenset()


@dataclass
class _Collector:
    found: List[wire.Difference] = field(default_factory=list)

    def add(self, kind: str, name: str, old: Any, new: Any, origin: str) -> None:
        if old == new:
            return
        is_secret = is_secret_variable(name) if kind == "environment" else is_secret_argument(name)
        shown = _masked(old, new) if is_secret else (_text(old), _text(new))
        self.found.append(wire.Difference(kind, name, *shown, origin))


def differences(old: Side, new: Side, profile: ProfileNames, own_folder: str = "") -> List[wire.Difference]:
    """List what differs: the backend's first, then the sweep's, then drift, then what a login left, then our own additions.

    `kind` is ``python``, ``user``, ``argument`` (`name` is the option as written) or ``environment``. `own_folder` is the
    state folder: a ``--config`` file in it is ours.
    """
    collector = _Collector()
    for kind, before, after in (("python", old.python, new.python), ("user", old.user, new.user)):
        if before is not None and after is not None:
            collector.add(kind, kind, before, after, "drift")
    _compare_arguments(collector, old.arguments, new.arguments, profile, own_folder)
    _compare_environments(collector, old, new, profile.environment)
    return sorted(collector.found, key=lambda item: (ORIGINS.index(item.origin), item.kind, item.name))


def _compare_arguments(collector: _Collector, old: ParsedCommand, new: ParsedCommand, profile: ProfileNames, own_folder: str) -> None:
    written = {name: option for used in (old.used, new.used) for option, name in used.items()}
    for name in sorted(set(old.values) | set(new.values)):
        before, after = old.values.get(name), new.values.get(name)
        origin = "backend" if name in profile.arguments else "sweep" if name in profile.swept else "drift"
        if name == _GATE or (name == "config" and own_folder and any(str(value).startswith(own_folder) for value in (before, after))):
            origin = "ours"
        collector.add("argument", written.get(name, "--" + name.replace("_", "-")), before, after, origin)


def _compare_environments(collector: _Collector, old: Side, new: Side, backend: AbstractSet[str]) -> None:
    proxy_exceptions_kept = _proxy_exceptions(old) == _proxy_exceptions(new)
    for name in sorted(set(old.environment) | set(new.environment)):
        is_ours = name in OURS or (name in PROXY_EXCEPTIONS and proxy_exceptions_kept)
        is_inherited = old.from_login and name not in new.environment and not steers(name)
        origin = "backend" if name in backend else "ours" if is_ours else "inherited" if is_inherited else "drift"
        if counts(name):
            collector.add("environment", name, old.environment.get(name), new.environment.get(name), origin)


def counts(variable: str) -> bool:
    """Whether a variable can change what a server does, as far as anybody can tell from its name."""
    if variable.startswith(ALWAYS_COUNTS):
        return True
    return variable not in NOISE and not variable.startswith(NOISE_PREFIXES)


def steers(variable: str) -> bool:
    """Whether a variable is known to change what a server does: SGLang's, the GPU libraries', Python's, proxies, search paths."""
    name = variable.upper()
    return name.startswith(STEERING_PREFIXES) or name.endswith(("_PROXY", "PATH"))


def _proxy_exceptions(side: Side) -> FrozenSet[str]:
    """What is reached without a proxy, in either spelling, less loopback and the server's own address, which we add."""
    names = (name.strip() for variable in PROXY_EXCEPTIONS for name in side.environment.get(variable, "").split(","))
    own = LOOPBACK | {str(side.arguments.values.get("host"))}
    return frozenset(name for name in names if name and name not in own)


def _masked(old: Any, new: Any) -> Tuple[Optional[str], Optional[str]]:
    """Of two secrets that differ: only whether each is set."""
    return None if old is None else SECRET, None if new is None else (SECRET if old is None else OTHER_SECRET)


def _text(value: Any) -> Optional[str]:
    if value is None:
        return None
    return mask_patterns(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def interpreter_identity(python: str, search_path: str = "") -> Optional[str]:
    """What makes two Python paths the same: the virtual environment they belong to, else the real file.

    A bare name is looked up in `search_path`, as the shell that started the server did; None when it isn't found.
    """
    if "/" not in python:
        candidates = (os.path.join(folder, python) for folder in search_path.split(":") if folder)
        python = next((path for path in candidates if os.access(path, os.X_OK)), "")
    if not os.path.exists(python):
        return None
    home = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    return os.path.realpath(home) if os.path.exists(os.path.join(home, "pyvenv.cfg")) else os.path.realpath(python)


def profile_names(new: wire.Launch, record: Optional[wire.Launch], destinations: Mapping[str, str]) -> ProfileNames:
    """The names that the candidate's profile, the running launch's and the candidate's sweep set.

    `destinations` maps flags to the parser's names.
    """
    launches = [launch for launch in (new, record) if launch is not None]
    flags = [flag for launch in launches for flag in launch.backend_flags]
    variables = [variable for launch in launches for variable in launch.backend_environment]

    def parsed(names: Sequence[str]) -> FrozenSet[str]:
        return frozenset(destinations.get(flag, textual_name(flag)) for flag in names)

    return ProfileNames(parsed(flags), frozenset(variables), parsed(new.swept_flags))
