"""What NCCL and SGLang are told about how GPUs may talk: the service's environment, NCCL's files, the running server's arguments."""

import os
from typing import Dict, List, Optional, Sequence, Tuple

from orchestrator.agent.command_lines import argument_value
from orchestrator.agent.doctor_context import Context
from orchestrator.agent.doctor_users import service_server
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.wire import Outcome, Verdict

SYSTEM_FILE = "/etc/nccl.conf"
"""Read by every NCCL; a variable of the environment counts more (NCCL's user guide, "Environment Variables")."""
USER_FILE = ".nccl.conf"

_WHAT_OFF_MEANS = "all-reduce goes through host memory"
_NEVER = ("LOC", "0")
"""NCCL_P2P_LEVEL that switches P2P off; 0 is its older spelling."""
_NO_CUSTOM_ALL_REDUCE = "--disable-custom-all-reduce"


def check_nccl(context: Context) -> List[Verdict]:
    """One verdict on everything that is set, where a service with more than one GPU runs."""
    if context.request.service is None or len(context.gpus) < 2:
        return []
    settings = read_settings(context)
    arguments = _server_arguments(context)
    return [judge(settings, arguments)]


def judge(settings: Dict[str, Tuple[str, str]], arguments: Optional[Sequence[str]]) -> Verdict:
    """Pure. `settings` maps NCCL variables to value and where it was read; `arguments` are the running server's, None without one."""
    doubts = [doubt for doubt in map(_doubt, settings.items()) if doubt is not None]
    if arguments is not None and _is_given(arguments, _NO_CUSTOM_ALL_REDUCE):
        doubts.append((f"{_NO_CUSTOM_ALL_REDUCE} is given to the running server", "SGLang's own, faster all-reduce is off"))
    source = "request's environment, " + ", ".join(dict.fromkeys([SYSTEM_FILE, *(place for _, place in settings.values())]))
    if arguments is not None:
        source += ", the server's arguments"
    if doubts:
        evidence = [f"{what}: {effect}" for what, effect in doubts]
        detail = "NCCL or SGLang is told not to use the short way between GPUs, which tensor parallel decode pays for with each token"
        step = "take them out of the service if nobody knows why they are there (a hang with the IOMMU on is the usual reason), and compare"
        return Verdict("nccl", Outcome.WARN, detail, evidence, step, source)
    told = ", ".join(f"{name}={value}" for name, (value, _) in settings.items())
    return Verdict("nccl", Outcome.PASS, f"nothing keeps NCCL from P2P{f' ({told})' if told else ''}", source=source)


def _doubt(item: Tuple[str, Tuple[str, str]]) -> Optional[Tuple[str, str]]:
    name, (value, place) = item
    what = f"{name}={value} ({place})"
    if name == "NCCL_P2P_DISABLE" and value not in ("", "0"):
        return what, f"P2P is off, {_WHAT_OFF_MEANS}"
    if name == "NCCL_P2P_LEVEL" and value.upper() in _NEVER:
        return what, f"P2P is never used, {_WHAT_OFF_MEANS}"
    if name == "NCCL_P2P_LEVEL" and value.upper() == "NVL":
        return what, f"P2P is used over NVLink only; over PCIe {_WHAT_OFF_MEANS}"
    if name == "NCCL_SHM_DISABLE" and value not in ("", "0"):
        return what, "shared memory is off: where P2P isn't possible, traffic goes through the network stack"
    return None


def read_settings(context: Context) -> Dict[str, Tuple[str, str]]:
    """The NCCL variables that a launch of the service would have, with where each is set; the environment counts most."""
    environment = context.request.environment
    found: Dict[str, Tuple[str, str]] = {}
    for path in (SYSTEM_FILE, environment.get("NCCL_CONF_FILE") or _user_file(context)):
        found.update({name: (value, path) for name, value in _parse_file(context.files, path).items()})
    found.update({name: (value, "service's environment") for name, value in environment.items() if name.startswith("NCCL_")})
    return found


def _parse_file(files: KernelFiles, path: str) -> Dict[str, str]:
    """Lines ``NAME=VALUE``; the rest are comments."""
    lines = (line.partition("=") for line in (files.text(path) or "").splitlines() if not line.lstrip().startswith("#"))
    return {name.strip(): value.strip() for name, separator, value in lines if separator and name.strip().startswith("NCCL_")}


def _user_file(context: Context) -> str:
    """~/.nccl.conf of the server's user."""
    import pwd

    home = context.request.environment.get("HOME")
    if home is None:
        try:
            user = context.request.user
            home = (pwd.getpwnam(user) if user is not None else pwd.getpwuid(os.geteuid())).pw_dir
        except KeyError:
            home = "/root"
    return os.path.join(home, USER_FILE)


def _server_arguments(context: Context) -> Optional[Sequence[str]]:
    server, _ = service_server(context)
    return None if server is None else server.main.arguments


def _is_given(arguments: Sequence[str], flag: str) -> bool:
    return flag in arguments or argument_value(list(arguments), flag) is not None
