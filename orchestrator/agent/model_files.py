"""Which files of a model's folder a server reads while it loads: its weights, and where a hub's model lies in the local cache."""

import os
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from orchestrator.agent.checkpoint import WEIGHTS

_LOCAL_FORMATS = frozenset({"auto", "safetensors", "pt", "npcache", "mistral", "gguf", "fastsafetensors", "layered"})
"""Values of --load-format that read all of the folder's weights (0.5.23, srt/configs/load_config.py)."""
_DRAFT = ("speculative_draft_model_path", "speculative_draft_model_revision")
_MAIN = ("model_path", "revision")


@dataclass(frozen=True)
class ModelFile:
    """A file by its real path, so that one that is linked twice is one; bytes."""

    path: str
    size: int


@dataclass(frozen=True)
class ModelFiles:
    """What will be read, in the order in which SGLang reads it. `problem` says why nobody can tell."""

    files: Tuple[ModelFile, ...] = ()
    problem: Optional[str] = None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def find(values: Mapping[str, Any], directory: Optional[str], environment: Mapping[str, str], home: str) -> ModelFiles:
    """The weights of the model, and of the draft model where there is one.

    Args:
        values: the arguments.
        directory: the server's working directory.
        environment, home: of who runs the server; they say where the hub's cache is.
    """
    load_format = str(values.get("load_format") or "auto")
    if load_format == "dummy":
        return ModelFiles()
    if load_format not in _LOCAL_FORMATS:
        return ModelFiles(problem=f"--load-format {load_format} does not say what is read from here")
    found: List[ModelFile] = []
    for name, revision in (_MAIN, _DRAFT):
        model = values.get(name)
        if not model:
            continue
        folder = _folder(str(model), str(values.get(revision) or "main"), values.get("download_dir"), directory, environment, home)
        if folder is None:
            return ModelFiles(problem=f"{model} is neither a folder here nor in the hub's cache")
        weights = _weights(folder)
        if not weights:
            return ModelFiles(problem=f"no weights are known in {folder}")
        found += [file for file in weights if file not in found]
    return ModelFiles(tuple(found), None if found else "the arguments name no model")


def _folder(model: str, revision: str, download: Any, directory: Optional[str], environment: Mapping[str, str], home: str) -> Optional[str]:
    path = os.path.join(directory or "/", os.path.expanduser(model))
    if os.path.isdir(path):
        return path
    if os.path.isfile(path):  # a single GGUF file
        return path
    cache = str(download) if download and download is not True else _hub_cache(environment, home)
    return _snapshot(os.path.join(cache, "models--" + model.replace("/", "--")), revision)


def _hub_cache(environment: Mapping[str, str], home: str) -> str:
    """As huggingface_hub finds it (constants.py)."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return environment[name]
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", home), ".cache")
    return os.path.join(environment.get("HF_HOME") or os.path.join(cache, "huggingface"), "hub")


def _snapshot(repository: str, revision: str) -> Optional[str]:
    """The folder of a revision: a branch's or tag's name is a file that holds the commit."""
    try:
        with open(os.path.join(repository, "refs", revision), encoding="utf-8") as stream:
            revision = stream.read().strip()
    except OSError:
        pass
    path = os.path.join(repository, "snapshots", revision)
    return path if revision and os.path.isdir(path) else None


def _weights(folder: str) -> List[ModelFile]:
    """The files of one format, by name: a folder may hold the same weights twice."""
    if os.path.isfile(folder):
        return [_file(folder)]
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return []
    for ending in WEIGHTS:
        chosen = [name for name in names if name.endswith(ending)]
        if chosen:
            return [_file(os.path.join(folder, name)) for name in chosen]
    return []


def _file(path: str) -> ModelFile:
    real = os.path.realpath(path)
    return ModelFile(real, os.stat(real).st_size)


def mounts(files: Sequence[ModelFile], mountinfo: str) -> List[str]:
    """The types of the file systems that the files lie on, by /proc/self/mountinfo (proc(5))."""
    table = []
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        parts = fields.split()
        if len(parts) > 4 and rest:
            table.append((_unescaped(parts[4]), rest.split()[0]))
    types = []
    for folder in {os.path.dirname(file.path) for file in files}:
        over = [(len(point), at, kind) for at, (point, kind) in enumerate(table) if point == "/" or (folder + "/").startswith(point + "/")]
        types += [max(over)[2]] if over else []
    return sorted(set(types))


def _unescaped(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path
