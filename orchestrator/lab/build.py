"""Writing a lab's folder: keys, hosts, virtual environments with the stand-in, inventory."""

from __future__ import annotations

import getpass
import json
import os
import random
import shlex
import shutil
import socket
import sys
import venv
from collections.abc import Iterable, Mapping
from pathlib import Path

import asyncssh
import yaml

from orchestrator.folders import SHIPPED_FOLDERS, shipped_profiles
from orchestrator.lab.layout import ADDRESS, GPU_COUNT, HOSTS, TIME_SCALE, LabHost, Layout, Ports

STANDIN = Path(__file__).parent / "standin"
SGLANG_VERSION = "0.5.23"

_TOOLS = (
    *("awk", "basename", "cat", "chmod", "cp", "cut", "date", "df", "dirname", "du", "echo", "env", "false", "find", "free", "grep"),
    *("head", "hostname", "id", "kill", "ln", "ls", "mkdir", "mktemp", "mv", "nohup", "printf", "ps", "pwd", "readlink", "rm", "sed"),
    *("setsid", "sh", "sleep", "sort", "ss", "stat", "tail", "tee", "test", "timeout", "touch", "tr", "true", "uname", "uniq", "wc"),
    *("which", "whoami"),
)
"""What a lab host has of this machine. No systemd-run, docker or sudo: everything stays an ordinary process of the user."""

_KERNEL_MODULES = {
    "flashinfer/__init__.py": "class CuteDslMoEWrapper: ...",
    "flashinfer/fused_moe.py": "def cutlass_fused_moe(): ...\n\n\ndef trtllm_fp4_block_scale_moe(): ...",
    "cutlass.py": "",
    "deep_gemm.py": "",
    "deep_ep.py": "",
    "mscclpp.py": "",
}
"""What a preflight looks for. Nothing here is marked for a compute capability: as in a fork, only the launch shows what works."""
"""What backend profiles ask the service's Python for."""

_BELOW_EPHEMERAL = range(20000, 32000)


def choose_ports() -> dict[str, Ports]:
    """Free ports for every host."""
    chosen = free_ports(2 * len(HOSTS))
    return {host.name: Ports(chosen.pop(), chosen.pop()) for host in HOSTS}


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has, below those that outgoing connections are given."""
    chosen: list[int] = []
    while len(chosen) < count:
        port = random.choice(_BELOW_EPHEMERAL)  # noqa: S311 - a port, not a secret
        if port not in chosen and _is_free(port):
            chosen.append(port)
    return chosen


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError:
            return False
    return True


def write_lab(layout: Layout, ports: Mapping[str, Ports]) -> None:
    """Make or renew everything but what changes while the lab runs (state folders, records, keys that exist)."""
    layout.directory.mkdir(parents=True, exist_ok=True)
    layout.directory.chmod(0o700)
    write_keys(layout, [host.name for host in HOSTS])
    _write_model(layout)
    for host in HOSTS:
        _write_host(layout, host)
    write_inventory(layout, ports)
    # Last: a folder with this file is a whole lab.
    described = {name: {"ssh": port.ssh, "sglang": port.sglang} for name, port in ports.items()}
    layout.mark.write_text(json.dumps({"ports": described}, indent=2) + "\n", encoding="utf-8")


def write_keys(layout: Layout, hosts: Iterable[str]) -> None:
    """Make the keys of the client and of each host that are not there yet."""
    layout.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("client", *hosts):
        if (layout.keys / name).exists():
            continue
        key = asyncssh.generate_private_key("ssh-ed25519", comment=f"throwaway key of the lab: {name}")
        key.write_public_key(str(layout.keys / f"{name}.pub"))
        key.write_private_key(str(layout.keys / name))
        (layout.keys / name).chmod(0o600)


def _write_model(layout: Layout) -> None:
    layout.model.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "max_position_embeddings": 202752}
    (layout.model / "config.json").write_text(json.dumps(config) + "\n", encoding="utf-8")


def _write_host(layout: Layout, host: LabHost) -> None:
    folder = layout.host(host.name)
    for name in ("bin", "home", "state", "processes"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    gpus = {
        "count": GPU_COUNT,
        "name": host.gpu_name,
        "compute_capability": host.compute_capability,
        "memory_mib": host.gpu_memory_mib,
        "uuid": f"GPU-1ab0{host.compute_capability.replace('.', ''):0>4}-0000-0000-0000",
    }
    (folder / "gpus.json").write_text(json.dumps(gpus) + "\n", encoding="utf-8")
    _write_tools(folder / "bin", folder)
    _write_service_python(folder / "sglang", folder, host)


def _write_tools(folder: Path, host_folder: Path) -> None:
    python = _base_python()
    _link(folder / "python3", python)
    for name in _TOOLS:
        found = shutil.which(name)
        if found:
            _link(folder / name, found)
    script = " ".join(shlex.quote(str(word)) for word in (python, "-I", "-S", STANDIN / "nvidia_smi.py", host_folder))
    tool = folder / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\nexec {script} "$@"\n', encoding="utf-8")
    tool.chmod(0o755)


def _base_python() -> str:
    """The interpreter under this one's virtual environment: the agent runs in it, isolated."""
    return str(getattr(sys, "_base_executable", sys.executable))


def _link(link: Path, target: str) -> None:
    if link.is_symlink() and os.readlink(link) == target:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _write_service_python(folder: Path, host_folder: Path, host: LabHost) -> None:
    """A virtual environment in which ``import sglang`` finds the stand-in, with the settings of this host beside it."""
    if not (folder / "pyvenv.cfg").exists():
        venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "sglang_standin.pth").write_text(f"{STANDIN}\nimport sglang.standin.driver\n", encoding="utf-8")
    metadata = packages / f"sglang-{SGLANG_VERSION}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {SGLANG_VERSION}\n", encoding="utf-8")
    for name, content in _KERNEL_MODULES.items():
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text(f'"""A name only: the lab has no such kernels."""\n\n\n{content}\n', encoding="utf-8")
    settings = {
        "time_scale": TIME_SCALE,
        "compute_capability": host.compute_capability,
        "gpu_memory_mib": host.gpu_memory_mib,
        "processes": str(host_folder / "processes"),
    }
    (folder / "standin.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")


def write_inventory(layout: Layout, ports: Mapping[str, Ports]) -> None:
    """An inventory in the shipped one's format, with the lab's host keys pinned.

    Raises:
        ConfigError: the profiles that come with this program are not where they should be.
    """
    services = layout.inventory / "services"
    services.mkdir(parents=True, exist_ok=True)
    hosts = {host.name: _host_entry(layout, host, ports[host.name]) for host in HOSTS}
    _write_yaml(layout.inventory / "hosts.yml", {"hosts": hosts}, ["The lab's two hosts: both are this machine."])
    for host in HOSTS:
        about = [f"A stand-in for SGLang: {host.about}.", "Decode speeds are set in the stand-in, not measured."]
        _write_yaml(services / f"{host.service}.yml", _service(layout, host, ports[host.name]), about)
    lines = [f"[{ADDRESS}]:{ports[host.name].ssh} {public_key(layout, host.name)}\n" for host in HOSTS]
    (layout.inventory / "known_hosts").write_text("".join(lines), encoding="utf-8")
    shipped = shipped_profiles()
    for folder in SHIPPED_FOLDERS:
        shutil.copytree(shipped / folder, layout.inventory / folder, dirs_exist_ok=True)


def public_key(layout: Layout, host: str) -> str:
    """A host's public key, as known_hosts has it."""
    kind, key = (layout.keys / f"{host}.pub").read_text(encoding="utf-8").split()[:2]
    return f"{kind} {key}"


def _host_entry(layout: Layout, host: LabHost, ports: Ports) -> dict[str, object]:
    return {
        "address": ADDRESS,
        "port": ports.ssh,
        "user": getpass.getuser(),
        "identity_files": [str(layout.client_key)],
        "agent": False,
        "state_root": str(layout.state_root(host.name)),
        "gpus": GPU_COUNT,
        "tuning": "observe",  # the lab's hosts are this machine: nothing of it is to be set
    }


def _service(layout: Layout, host: LabHost, ports: Ports) -> dict[str, object]:
    return {
        "name": host.service,
        "host": host.name,
        "place": "host",
        "python": str(layout.python(host.name)),
        "model": str(layout.model),
        "port": ports.sglang,
        "backend": "auto",
        "arguments": {"--tp-size": GPU_COUNT, "--quantization": "modelopt_fp4", "--enable-metrics": True},
        "policy": {
            "clean": 20.0,
            "load_total": 120.0,
            "load_stall": 60.0,
            "measure_input_tokens": 128,
            "measure_output_tokens": 64,
            "measure_repeats": 3,
        },
    }


def _write_yaml(path: Path, value: Mapping[str, object], comment: Iterable[str]) -> None:
    head = "".join(f"# {line}\n" for line in comment)
    path.write_text(head + yaml.safe_dump(value, sort_keys=False, width=140), encoding="utf-8")
