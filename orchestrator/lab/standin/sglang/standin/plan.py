"""What a launch will be, worked out from the arguments before anything is started (ServerArgs.resolve_once)."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang.standin import backends
from sglang.standin.log import log
from sglang.standin.settings import Settings
from sglang.version import __version__

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

_DEFAULT_CONTEXT = 131072
_DEFAULT_ARCHITECTURE = "GlmMoeDsaForCausalLM"


@dataclass(frozen=True)
class Plan:
    """Everything a process of the server needs to know; it is pickled to the children."""

    arguments: dict[str, Any]
    """Resolved values by destination: what the log and /server_info show, API key included."""
    launch_command: str
    settings: Settings
    architecture: str
    model_type: str
    context_length: int
    main_pid: int

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def runner(self) -> str:
        return str(self["moe_runner_backend"])

    @property
    def version(self) -> str:
        """The SGLang that it claims to be."""
        return self.settings.version or __version__

    @property
    def gate_port(self) -> int | None:
        """None: there is no gate, or no such flag in the version that is claimed."""
        port = self.arguments.get("gated_launch_port")
        return None if port is None else int(port)

    @property
    def ranks(self) -> int:
        """Of this node."""
        return max(1, int(self["tp_size"]) // int(self["nnodes"]))

    @property
    def first_rank(self) -> int:
        """The number of this node's first one among all, and of its GPU: the lab's hosts are one machine."""
        return self.ranks * int(self["node_rank"])

    @property
    def has_graphs(self) -> bool:
        disabled = self["disable_cuda_graph"] or self["cuda_graph_backend_decode"] == "disabled"
        return bool(self.settings.compute_capability) and not disabled

    @property
    def graph_label(self) -> str:
        return "cuda graph" if self.settings.compute_capability else "cpu graph"


def make_plan(server_args: ServerArgs, settings: Settings) -> Plan:
    """Check the arguments against the model and the GPUs and fill in what was left open.

    Raises:
        OSError: no such model. ValueError: a context longer than the model's. AssertionError: a refused combination.
            The texts are the real ones; each ends the launch with exit code 1.
    """
    values = {name: value for name, value in vars(server_args).items() if not name.startswith("_")}
    config = _read_model_config(values["model_path"])
    context = _context_length(values["context_length"], int(config.get("max_position_embeddings", _DEFAULT_CONTEXT)))
    backends.check_arguments(values["moe_runner_backend"], values["quantization"])
    runner, line = backends.resolve_runner(values["moe_runner_backend"], values["quantization"], settings.compute_capability)
    if line:
        log(line)
    values.update(
        moe_runner_backend=runner,
        tokenizer_path=values["tokenizer_path"] or values["model_path"],
        served_model_name=values["served_model_name"] or values["model_path"],
        attention_backend=values["attention_backend"] or ("flashinfer" if settings.compute_capability else "torch_native"),
        sampling_backend=values.get("sampling_backend") or "flashinfer",
        device=values["device"] or ("cuda" if settings.compute_capability else "cpu"),
        mem_fraction_static=values["mem_fraction_static"] or 0.85,
        chunked_prefill_size=values["chunked_prefill_size"] or 8192,
        max_running_requests=values["max_running_requests"] or 2048,
        page_size=values["page_size"] or 1,
        random_seed=values["random_seed"] or random.randrange(1 << 30),  # noqa: S311
    )
    architectures = config.get("architectures") or [_DEFAULT_ARCHITECTURE]
    return Plan(
        arguments=values,
        launch_command=str(server_args.__dict__["_launch_command"]),
        settings=settings,
        architecture=str(architectures[0]),
        model_type=str(config.get("model_type", "")),
        context_length=context,
        main_pid=os.getpid(),
    )


def _read_model_config(model_path: str) -> dict[str, Any]:
    folder = Path(model_path)
    if folder.is_dir():
        try:
            return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise OSError(f"{model_path} does not appear to have a file named config.json.") from None
    if model_path.startswith(("/", ".")) or model_path.count("/") != 1:
        message = f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{model_path}'. Use `repo_type` argument if needed."
        raise OSError(message)
    raise OSError(
        "We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.\n"
        "Check your internet connection or see how to run the library in offline mode."
    )


def _context_length(asked: int | None, derived: int) -> int:
    if asked is not None and asked > derived:
        raise ValueError(
            f"Warning: User-specified context_length ({asked}) is greater than the derived context_length ({derived}). "
            "This may lead to incorrect model outputs or CUDA errors."
        )
    return asked or derived
