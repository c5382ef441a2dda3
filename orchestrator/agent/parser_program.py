"""Asks SGLang's own parser about command lines. Runs in the *service's* Python, as ``python -c SOURCE``, never in the agent's.

One JSON question comes on stdin, one JSON answer goes to stdout; everything that SGLang prints while it is imported goes to
stderr. The parser is SGLang's whole ``prepare_server_args`` (srt/server_args.py, 0.5.6 to 0.5.23): it merges ``--config``
files, registers plugins' choices and knows the aliases of its version. Only the last step is cut off, the construction of
ServerArgs, which up to 0.5.9 probes GPUs and reads the model.

Question: ``{"commands": [[argument, ...], ...], "flags": [flag, ...], "modules": [name, ...], "seconds": limit}``.
Answer: ``{"version", "error", "evidence", "commands": [{"accepted", "values", "used", "message", "exit_status"}],
"destinations": {flag: name}, "modules": {name: importable}}``.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
import traceback
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

EVIDENCE_LINES = 8


class _Refused(Exception):  # noqa: N818
    """The parser's own message, without its 400 lines of usage."""


class _Parsed(BaseException):
    """Raised in place of ServerArgs' construction; a BaseException so that no ``except Exception`` of SGLang's swallows it."""


class _Recorder:
    """What the last parser saw: itself, its argument vector with config files merged, its namespace."""

    def __init__(self) -> None:
        self.parser: Optional[argparse.ArgumentParser] = None
        self.arguments: List[str] = []
        self.values: Dict[str, Any] = {}

    def install(self) -> None:
        original: Callable[..., Tuple[argparse.Namespace, List[str]]] = argparse.ArgumentParser.parse_known_args

        def parse_known_args(
            parser: argparse.ArgumentParser, args: Optional[Sequence[str]] = None, namespace: Any = None
        ) -> Tuple[argparse.Namespace, List[str]]:
            self.parser, self.arguments, self.values = parser, list(args or []), {}
            parsed, unknown = original(parser, args, namespace)
            self.values = {name: value for name, value in vars(parsed).items() if not name.startswith("_")}
            return parsed, unknown

        def error(_parser: argparse.ArgumentParser, message: str) -> NoReturn:
            raise _Refused(message)

        argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[assignment,method-assign]
        argparse.ArgumentParser.error = error  # type: ignore[assignment,method-assign]


def destination(parser: Optional[argparse.ArgumentParser], flag: str) -> Optional[str]:
    """The name under which the parser stores `flag`, prefix abbreviations included."""
    if parser is None:
        return None
    actions = parser._option_string_actions
    if flag in actions:
        return str(actions[flag].dest)
    found = {str(action.dest) for option, action in actions.items() if option.startswith(flag)}
    return found.pop() if flag.startswith("--") and len(found) == 1 else None


def options_used(parser: Optional[argparse.ArgumentParser], arguments: Sequence[str]) -> Dict[str, str]:
    """Option as written -> the name under which its value is stored."""
    flags = [argument.split("=", 1)[0] for argument in arguments if argument.startswith("-")]
    found = ((flag, destination(parser, flag)) for flag in flags)
    return {flag: name for flag, name in found if name is not None}


def plain(value: Any) -> Any:
    """The value as JSON can say it; repr of what it can't."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return repr(value)


def parse(prepare: Callable[[List[str]], Any], recorder: _Recorder, arguments: List[str]) -> Dict[str, Any]:
    message, status = "", 0
    recorder.arguments, recorder.values = [], {}
    try:
        prepare(list(arguments))
    except _Parsed:
        pass
    except _Refused as refused:
        message, status = str(refused), 2
    except SystemExit as leaving:
        message, status = "it prints its help or version and ends", leaving.code if isinstance(leaving.code, int) else 1
    except Exception as error:  # noqa: BLE001 - whatever SGLang raises here ends its launch as well
        message, status = f"{type(error).__name__}: {error}", 1
    return {
        "accepted": not message,
        "values": plain(recorder.values) if not message else {},
        "used": options_used(recorder.parser, recorder.arguments or arguments),
        "message": message,
        "exit_status": status,
    }


def installed_version() -> Optional[str]:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        return str(importlib.import_module("sglang.version").__version__)
    except Exception:  # noqa: BLE001 - without a version there is still a parser
        return None


def is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except Exception:  # noqa: BLE001 - a parent package that fails to import makes it as unusable as a missing one
        return False


def load_parser() -> Callable[[List[str]], Any]:
    """SGLang's ``prepare_server_args`` with its plugins loaded (as launch_server does) and the construction cut off."""
    server_args = importlib.import_module("sglang.srt.server_args")
    with contextlib.suppress(ImportError):
        importlib.import_module("sglang.srt.plugins").load_plugins()

    def stop(_arguments: argparse.Namespace) -> NoReturn:
        raise _Parsed

    server_args.ServerArgs.from_cli_args = staticmethod(stop)
    prepare: Callable[[List[str]], Any] = server_args.prepare_server_args
    return prepare


def answer(question: Dict[str, Any]) -> Dict[str, Any]:
    reply: Dict[str, Any] = {"version": installed_version(), "error": None, "evidence": [], "commands": [], "destinations": {}}
    reply["modules"] = {name: is_importable(name) for name in question["modules"]}
    if not question["commands"]:
        return reply
    try:
        prepare = load_parser()
    except Exception as error:  # noqa: BLE001 - the answer says what it was
        reply["error"] = f"{type(error).__name__}: {error}"
        reply["evidence"] = traceback.format_exc().splitlines()[-EVIDENCE_LINES:]
        return reply
    recorder = _Recorder()
    recorder.install()
    reply["commands"] = [parse(prepare, recorder, arguments) for arguments in question["commands"]]
    found = ((flag, destination(recorder.parser, flag)) for flag in question["flags"])
    reply["destinations"] = {flag: name for flag, name in found if name is not None}
    return reply


def main() -> NoReturn:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    question = json.load(sys.stdin)
    # Nobody may be left to end this process: the connection can be lost, and the agent with it.
    signal.alarm(int(question["seconds"]) + 1)
    json.dump(answer(question), answers)
    answers.close()
    # Tearing torch down takes a second and can hang in a driver; there is nothing to clean up.
    os._exit(0)


if __name__ == "__main__":
    main()
