"""What a launch leaves in its folder before it starts: environment, secrets, an empty log. The same for both runners."""

import json
import os
import pwd
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from orchestrator.agent import wire
from orchestrator.agent.codec import record
from orchestrator.agent.command import run_bounded
from orchestrator.agent.command_lines import command_of
from orchestrator.agent.private_files import write_private
from orchestrator.agent.processes import MARKER
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LOOPBACK = ("127.0.0.1", "localhost", "0.0.0.0")  # noqa: S104 - a name in no_proxy, nothing is bound
LOG_LIMIT = 64 * 1024 * 1024
"""Bytes after which server.log becomes server.log.1."""

_READ_YAML = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout, default=str)"
_READ_YAML_SECONDS = 60.0


@record(frozen=True)
class Account:
    """Whom the server runs as. `switch` is false when that is who runs the agent."""

    name: str
    user_id: int
    group_id: int
    home: str
    switch: bool


@record(frozen=True)
class LaunchFiles:
    """A launch, ready to be started."""

    launch: wire.Launch
    folder: Path
    argv: List[str]
    environment: Dict[str, str]
    account: Account

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def exit(self) -> Path:
        return self.folder / "exit"

    @property
    def environment_file(self) -> Path:
        return self.folder / "environment"


@record(frozen=True)
class ExitStatus:
    """How a main process ended, in systemd's words (systemd.exec(5), $SERVICE_RESULT, $EXIT_CODE, $EXIT_STATUS).

    For example ``success exited 0``, ``exit-code exited 2``, ``signal killed KILL``.
    """

    result: str
    code: str
    status: str

    def __str__(self) -> str:
        return f"{self.result} {self.code} {self.status}"


def read_exit_status(path: Path) -> Optional[ExitStatus]:
    """The recorded exit status; None while the server runs, or when nobody could record it."""
    try:
        words = path.read_text(encoding="utf-8").split()
    except OSError:
        return None
    return ExitStatus(*words) if len(words) == 3 else None


def prepare(folder: StateFolder, launch: wire.Launch) -> LaunchFiles:
    """Write the launch's files and return what is to be started.

    Raises:
        AgentRefusal: no such user, a value that an environment can't carry, or the service's own ``--config`` file can't be
            read (``refused``); another user without root (``rights``).
    """
    account = find_account(launch.user)
    environment = server_environment(launch, account)
    refuse_uncarried(environment)
    folder_path = folder.write_launch(launch)
    files = LaunchFiles(launch, folder_path, command_of(launch), environment, account)
    if launch.secrets:
        files = LaunchFiles(launch, folder_path, command_of(launch, _hide_secrets(files)), environment, account)
    write_private(files.environment_file, environment_text(environment))
    for path in (files.log, files.exit):
        os.close(os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    if account.switch:
        os.chown(files.exit, account.user_id, account.group_id)  # its unit records how it ended as this user
    return files


def started_files(folder: StateFolder, launch: wire.Launch) -> LaunchFiles:
    """What :func:`prepare` made of a launch that was started, from its record, to start it again: without a gate.

    Raises:
        AgentRefusal: its user does not exist any more.
    """
    account = find_account(launch.user)
    path = folder.launch_folder(launch.launch_id)
    arguments = [*split_config(launch.arguments)[1], "--config", str(path / "config.yaml")] if launch.secrets else launch.arguments
    return LaunchFiles(launch, path, [launch.python, *launch.entry, *arguments], server_environment(launch, account), account)


def find_account(user: Optional[str]) -> Account:
    """Whom to run as: `user` (a name or a number), or whoever runs the agent.

    Raises:
        AgentRefusal: no such user (``refused``), or not root and another user asked for (``rights``).
    """
    own = os.geteuid()
    entry = _find_entry(user)
    if entry is None and user is None:
        return Account(str(own), own, os.getegid(), "/", switch=False)
    if entry is None:
        raise AgentRefusal("refused", f"there is no user {user} in this place", next_step="set user: in the service to one that exists")
    if entry.pw_uid != own and own != 0:
        raise AgentRefusal("rights", f"only root can start a server as {entry.pw_name}", next_step="set become: sudo for this place")
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir, switch=entry.pw_uid != own)


def _find_entry(user: Optional[str]) -> Optional[pwd.struct_passwd]:
    try:
        if user is None:
            return pwd.getpwuid(os.geteuid())
        return pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError:
        return None


def server_environment(launch: wire.Launch, account: Account) -> Dict[str, str]:
    """The whole environment of a server: defaults, the launch's own, and what this program adds. A copy's own is whole already."""
    environment = {
        "PATH": ":".join([os.path.dirname(launch.python), SYSTEM_PATH]) if launch.python.startswith("/") else SYSTEM_PATH,
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "LANG": "C.UTF-8",
    }
    environment = {**({} if launch.conditions is not None else environment), **launch.environment}
    # SGLang's own warm-up goes through http_proxy otherwise, and a proxy's answer ends the server.
    loopback = without_proxy([environment.get("no_proxy", ""), environment.get("NO_PROXY", "")], launch.host)
    environment.update({"no_proxy": loopback, "NO_PROXY": loopback})
    # setproctitle overwrites the environment area, and our marker with it, unless it is told not to.
    environment.update({"SPT_NOENV": "1", MARKER: launch.launch_id})
    return environment


def without_proxy(given: List[str], host: str) -> str:
    """A ``no_proxy`` value: what was given, then loopback and the address the server binds."""
    names: List[str] = []
    for name in [item.strip() for value in given for item in value.split(",")] + [*LOOPBACK, host]:
        if name and name not in names:
            names.append(name)
    return ",".join(names)


def refuse_uncarried(environment: Dict[str, str]) -> None:
    """Refuse what systemd would drop from an EnvironmentFile in silence (basic/env-util.c, v252)."""
    for name, value in environment.items():
        problem = uncarried(name, value)
        if problem is not None:
            raise AgentRefusal("refused", problem)


def uncarried(name: str, value: str) -> Optional[str]:
    """Why an EnvironmentFile can't carry a variable; None where it can."""
    if not name.isidentifier() or not name.isascii():
        return f"{name!r} is no name for an environment variable"
    if any((ord(letter) < 32 and letter not in "\t\n") or letter == "\x7f" for letter in value):
        return f"the value of {name} holds a control character, which no EnvironmentFile carries"
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        return f"the value of {name} is no UTF-8 text, which no EnvironmentFile carries"
    return None


def environment_text(environment: Dict[str, str]) -> str:
    """The text of an EnvironmentFile (systemd.exec(5)): every value in double quotes, in which a backslash escapes four characters."""
    lines = []
    for name in sorted(environment):
        value = environment[name]
        for special in ("\\", '"', "$", "`"):
            value = value.replace(special, "\\" + special)
        lines.append(f'{name}="{value}"\n')
    return "".join(lines)


def split_config(arguments: List[str]) -> Tuple[Optional[str], List[str]]:
    """Take ``--config FILE`` out of arguments. SGLang reads only the two-word spelling (srt/utils/server_args_config_parser.py)."""
    if "--config" not in arguments:
        return None, list(arguments)
    at = arguments.index("--config")
    if at + 1 == len(arguments):
        return None, list(arguments)
    return arguments[at + 1], arguments[:at] + arguments[at + 2 :]


def merge_secrets(config: Dict[str, Any], secrets: Dict[str, str]) -> Dict[str, Any]:
    """A configuration with the secrets in it; a key may be spelled with ``-`` or ``_`` in SGLang's file."""
    hidden = {name.replace("-", "_") for name in secrets}
    kept = {key: value for key, value in config.items() if key.replace("-", "_") not in hidden}
    return {**kept, **secrets}


def _hide_secrets(files: LaunchFiles) -> List[str]:
    """Write config.yaml and return the arguments that go with it. JSON is YAML; the name must end in ``.yaml`` for SGLang."""
    launch = files.launch
    own, arguments = split_config(launch.arguments)
    config = _read_config(files, own) if own is not None else {}
    path = files.folder / "config.yaml"
    write_private(path, json.dumps(merge_secrets(config, launch.secrets), ensure_ascii=False))
    if files.account.switch:
        os.chown(path, files.account.user_id, files.account.group_id)
    return [*arguments, "--config", str(path)]


def _read_config(files: LaunchFiles, path: str) -> Dict[str, Any]:
    """The service's own configuration file, read by the YAML library of the service's Python: the agent has none."""
    launch = files.launch
    path = os.path.join(launch.directory or "/", path)
    output = run_bounded([launch.python, "-c", _READ_YAML, path], _READ_YAML_SECONDS, environment=files.environment)
    if not output.good:
        raise AgentRefusal("refused", f"the service's own --config {path} can't be read", output.errors.splitlines()[-3:])
    config = json.loads(output.text) or {}
    if not isinstance(config, dict):
        raise AgentRefusal("refused", f"the service's own --config {path} holds no mapping")
    return config
