"""Where each check of a preflight was read, where it hasn't said so itself. Pure."""

from dataclasses import replace
from typing import List, Sequence

from orchestrator.agent import wire
from orchestrator.agent.wire import Verdict


def sourced(verdicts: Sequence[Verdict], launch: wire.Launch) -> List[Verdict]:
    """Each verdict with where it was read, where the check itself hasn't said so."""
    parser = f"SGLang's parser in {launch.python}"
    sources = {
        "rights": "/proc/PID",
        "server": "/proc/net/tcp",
        "manager": "/proc/PID/cgroup",
        "respawn": "/proc/PID/cmdline",
        "order": "journal of the order",
        "user": "/etc/passwd",
        "python": "access(2)",
        "sglang": f"packages of {launch.python}",
        "arguments": parser,
        "multi_node": parser,
        "rollback": parser,
        "cuda": "/dev, nvidia-smi",
        "expected_gpus": "nvidia-smi",
        "gpu_count": "nvidia-smi, arguments",
        "compute_capability": "nvidia-smi, backend profile",
        "quantization": "arguments, backend profile",
        "python_modules": launch.python,
        "model": "stat(2)",
        "port": "/proc/net/tcp",
        "state_folder": "statvfs(3)",
        "shared_memory": "statvfs(3)",
        "memory": "/proc/meminfo",
        "gpu_memory": "nvidia-smi, model folder",
        "kernel_choice": "arguments, backend profile",
        "gate": "--host, nft list tables",
        "checkpoint_files": "mincore(2), /proc/meminfo",
        "kernel_caches": "folders of the caches",
    }
    return [replace(verdict, source=verdict.source or sources.get(verdict.check, "")) for verdict in verdicts]


def without_repetitions(verdicts: List[Verdict]) -> List[Verdict]:
    """Several profiles may ask for the same; each answer is shown once."""
    kept: List[Verdict] = []
    for verdict in verdicts:
        if verdict not in kept:
            kept.append(replace(verdict, evidence=[line for line in verdict.evidence if line]))
    return kept
