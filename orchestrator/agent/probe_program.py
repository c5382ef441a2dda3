"""Looks for kernels in the source of what the *service's* Python would import. Runs there, as ``python -c SOURCE``, never in the agent's.

Nothing of what is read is run: a default argument, a marker's list of compute capabilities or an assertion can be read in a fork, a
checkout and a release alike, without a GPU and in milliseconds. Names are followed through re-exports (``flashinfer`` ->
``.fused_moe`` -> ``.cute_dsl``), so that a file which moved between versions is found. Only then, and only what is asked for, is imported
for real, with no GPU visible: that alone shows whether what it needs in its turn is there.

Question: ``{"probes": [{"module", "name", "tells"}], "load": ["module:name", ...], "seconds": limit}``.
Answers, a line each, so that an import which hangs or crashes takes no other answer with it:
``{"probe": index, "found", "missing", "path", "line", "values", "limits"}``, then ``{"load": "module:name", "error", "of_import"}``.
"""

import ast
import importlib
import importlib.util
import json
import os
import re
import signal
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

DEEPEST = 8
"""Re-exports that are followed, and calls within a file."""

_MARKER = "supported_compute_capability"
"""FlashInfer's decorator (flashinfer/utils.py): it only marks, and raises in what ``backend_requirement`` wraps."""
_CHECKED_BY = "backend_requirement"
_ADMITTED = "admissible_archs"
"""Of an operation of the CuTe DSL (cutlass/cute/nvgpu/tcgen05/mma.py): "expects arch to be one of"."""
_ARCHITECTURE = re.compile(r"(?:sm_?)?(\d{2,3})([af]?)$", re.IGNORECASE)
_ABOUT_ARCHITECTURE = re.compile(r"sm_version|compute_capab|\barch\b|device_arch|\bcc\b|get_sm|\bsm\b")

_OF_DRIVER = re.compile(r"libcuda\.|libnvidia-")
"""Libraries of the driver: whether CUDA works is another check's."""

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Node = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign]


class Missing(Exception):  # noqa: N818
    """The part of a dotted name that is not there."""


class File(NamedTuple):
    """A module's source."""

    module: str
    path: str
    is_package: bool
    tree: ast.Module


class Found(NamedTuple):
    """A definition and where it stands; without a node, the module itself."""

    file: File
    node: Optional[Node]


_files: Dict[str, File] = {}


def find_file(module: str) -> File:
    """The source of a module, none of its packages imported.

    Raises:
        Missing: there is no such module; it says which part of its name is missing.
        ValueError, OSError, SyntaxError: it is there and can't be read as Python.
    """
    if module not in _files:
        path, is_package = _locate(module)
        with open(path, "rb") as stream:
            _files[module] = File(module, path, is_package, ast.parse(stream.read(), path))
    return _files[module]


def _locate(module: str) -> Tuple[str, bool]:
    parts = module.split(".")
    spec = importlib.util.find_spec(parts[0])  # imports nothing as long as the name has no dot
    if spec is None:
        raise Missing(parts[0])
    path, folders = spec.origin, list(spec.submodule_search_locations or [])
    for count in range(2, len(parts) + 1):
        path, folders = _within(folders, parts[count - 1])
        if path is None and not folders:
            raise Missing(".".join(parts[:count]))
    if path is None or not path.endswith(".py"):
        raise ValueError(f"{module} is not Python source: {path or folders[0]}")
    return path, bool(folders)


def _within(folders: Sequence[str], name: str) -> Tuple[Optional[str], List[str]]:
    """The file of a module in one of a package's folders, and the folders for its own modules where it is a package itself."""
    without_file = []
    for folder in folders:
        inside = os.path.join(folder, name)
        package = os.path.join(inside, "__init__.py")
        if os.path.exists(package):
            return package, [inside]
        if os.path.exists(inside + ".py"):
            return inside + ".py", []
        compiled = [file for file in sorted(os.listdir(folder)) if file.startswith(f"{name}.") and file.endswith(".so")]
        if compiled:
            return os.path.join(folder, compiled[0]), []
        without_file += [inside] if os.path.isdir(inside) else []
    return None, without_file


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module, and of its top-level ``if``, ``try`` and ``with``: optional parts are imported in these."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            if not isinstance(statement, (*Function, ast.ClassDef)):
                yield from statements(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from statements(handler.body)


def resolve(module: str, name: str, depth: int = 0) -> Optional[Found]:
    """Where `name` of a module is defined; None when the module neither defines nor re-exports it.

    Raises:
        Missing, ValueError, OSError, SyntaxError: see :func:`find_file`.
        LookupError: the module makes its names when they are asked for.
    """
    file = find_file(module)
    if not name:
        return Found(file, None)
    first, _, rest = name.partition(".")
    found = _defined(file, first) or (_imported(file, first, depth) if depth < DEEPEST else None)
    if found is None:
        if _defined(file, "__getattr__") is not None:
            raise LookupError(f"{module} makes its names when they are asked for")
        return None
    return _member(found, rest) if rest else found


def _defined(file: File, name: str) -> Optional[Found]:
    assigned = None
    for statement in statements(file.tree.body):
        if isinstance(statement, (*Function, ast.ClassDef)) and statement.name == name:
            return Found(file, statement)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and name in _targets(statement):
            assigned = statement
    exported = any(
        isinstance(statement, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in statement.names)
        for statement in statements(file.tree.body)
    )
    # ``Name = None`` stands in many a handler of an ImportError.
    return None if assigned is None or exported else Found(file, assigned)


def _targets(statement: Union[ast.Assign, ast.AnnAssign]) -> List[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _imported(file: File, name: str, depth: int) -> Optional[Found]:
    for statement in statements(file.tree.body):
        if not isinstance(statement, ast.ImportFrom):
            continue
        for alias in statement.names:
            if alias.name == "*" or (alias.asname or alias.name) == name:
                found = _follow(_source(file, statement), name if alias.name == "*" else alias.name, depth + 1)
                if found is not None:
                    return found
    return None


def _follow(module: str, name: str, depth: int) -> Optional[Found]:
    """A name of a module, or a module of a package; what can't be followed is not where it comes from."""
    try:
        found = resolve(module, name, depth)
    except (Missing, LookupError, ValueError, OSError, SyntaxError):
        return None
    if found is not None:
        return found
    try:
        return Found(find_file(f"{module}.{name}"), None)
    except (Missing, ValueError, OSError, SyntaxError):
        return None


def _source(file: File, statement: ast.ImportFrom) -> str:
    """The absolute name of the module that a ``from`` statement names."""
    if not statement.level:
        return statement.module or ""
    parts = file.module.split(".")
    kept = parts[: len(parts) - statement.level + (1 if file.is_package else 0)]
    return ".".join([*kept, *([statement.module] if statement.module else [])])


def _member(found: Found, name: str) -> Optional[Found]:
    for statement in getattr(found.node, "body", []) if found.node is not None else []:
        if isinstance(statement, (*Function, ast.ClassDef)) and statement.name == name:
            return Found(found.file, statement)
    return None


def told(found: Found, names: Sequence[str]) -> Dict[str, str]:
    """The asked default arguments and constants as their source has them: of the definition, of its methods, of its module."""
    values: Dict[str, str] = {}
    places = [*_callables(found.node), *([found.node] if found.node is not None else []), found.file.tree]
    for name in names:
        texts = (_value_in(place, name) for place in places)
        value = next((text for text in texts if text is not None), None)
        if value is not None:
            values[name] = value
    return values


def _callables(node: Optional[ast.AST]) -> List[ast.AST]:
    """A function; of a class its methods, the constructor first."""
    if isinstance(node, Function):
        return [node]
    methods = (
        [item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))] if isinstance(node, ast.ClassDef) else []
    )
    return [*sorted(methods, key=lambda method: method.name != "__init__")]


def _value_in(place: ast.AST, name: str) -> Optional[str]:
    if isinstance(place, Function):
        return _default(place, name)
    for statement in getattr(place, "body", []):
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and name in _targets(statement) and statement.value is not None:
            return ast.unparse(statement.value)
    return None


def _default(function: Any, name: str) -> Optional[str]:
    """A parameter's default, or what stands in for it in ``kwargs.pop(name, default)``."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(positional) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    for parameter, default in zip([*positional, *given.kwonlyargs], defaults):  # noqa: B905 - as long as each other
        if parameter.arg == name and default is not None:
            return ast.unparse(default)
    popped = (call.args for call in ast.walk(function) if isinstance(call, ast.Call) and _pops(call, name))
    return next((ast.unparse(arguments[1]) for arguments in popped), None)


def _pops(call: ast.Call, name: str) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("pop", "get") or len(call.args) != 2:
        return False
    return isinstance(call.args[0], ast.Constant) and call.args[0].value == name


def limits(found: Found) -> List[Dict[str, Any]]:
    """What the source says of compute capabilities, of the definition and of all in its file that it leads to.

    Each has its `kind` (``marks``, ``requires``, ``admits``, ``blocks``), its `values` (``10.0``, ``10.x`` for a family) and its line.
    """
    if found.node is None:
        return []
    said = [*_marks(found.file, found.node), *_admits(found.file, found.node)]
    for node in _reached(found.file, found.node):
        said += _requires(found.file, node)
        said += _blocks(node)
    return [{"kind": kind, "values": values, "line": line} for kind, values, line in said]


Limit = Tuple[str, List[str], int]


def _marks(file: File, node: Node) -> List[Limit]:
    """Of the definition's own decorators; of a class those of its constructor, else of the method that has some."""
    for place in [node, *_callables(node)]:
        found = [limit for decorator in getattr(place, "decorator_list", []) for limit in _marked(file, decorator)]
        if found:
            return found
    return []


def _marked(file: File, decorator: ast.expr) -> List[Limit]:
    if not isinstance(decorator, ast.Call):
        return []
    called = ast.unparse(decorator.func).rsplit(".", 1)[-1]
    if called == _MARKER and decorator.args:
        values = _architectures(file, None, decorator.args[0])
        return [("marks", values, decorator.lineno)] if values else []
    if called != _CHECKED_BY:
        return []
    by_backend = decorator.args[0] if decorator.args else None
    checkers = list(by_backend.values) if isinstance(by_backend, ast.Dict) else []
    common = [keyword.value for keyword in decorator.keywords if keyword.arg == "common_check"]
    found = _union(file, checkers) or _union(file, common)
    return [("requires", found, decorator.lineno)] if found else []


def _union(file: File, checkers: Sequence[ast.expr]) -> List[str]:
    """What any of these functions is marked for; nothing when one of them is not marked, and so takes all."""
    values: List[str] = []
    for checker in checkers:
        defined = _defined(file, checker.id) if isinstance(checker, ast.Name) else None
        marked = _marks(file, defined.node) if defined is not None and defined.node is not None else []
        if not marked:
            return []
        values += [value for _, found, _ in marked for value in found if value not in values]
    return values


def _admits(file: File, node: Node) -> List[Limit]:
    """``admissible_archs`` of a class or of the classes above it in its file."""
    current: Optional[Node] = node
    for _ in range(DEEPEST):
        if not isinstance(current, ast.ClassDef):
            return []
        for statement in current.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and _ADMITTED in _targets(statement) and statement.value is not None:
                values = _named_architectures(statement.value)
                return [("admits", values, statement.lineno)] if values else []
        bases = [_defined(file, base.id) for base in current.bases if isinstance(base, ast.Name)]
        current = next((base.node for base in bases if base is not None), None)
    return []


def _named_architectures(value: ast.expr) -> List[str]:
    """``Arch.sm_100a`` in a list, or in the lambda of an ``Arch.filter``."""
    names = [node.attr for node in ast.walk(value) if isinstance(node, ast.Attribute)]
    return [text for text in map(architecture, names) if text is not None]


def _reached(file: File, node: Node) -> List[Node]:
    """The definition, and those of its file that it names, and so on."""
    reached: List[Node] = [node]
    names: Set[str] = set()
    for current in reached:
        if len(reached) > 200:
            break
        for item in ast.walk(current):
            if isinstance(item, ast.Name) and item.id not in names:
                names.add(item.id)
                found = _defined(file, item.id)
                if found is not None and isinstance(found.node, (*Function, ast.ClassDef)) and found.node not in reached:
                    reached.append(found.node)
    return reached


def _requires(file: File, node: Node) -> List[Limit]:
    """``assert sm_version in [...]``, and ``if sm_version not in [...]: raise``."""
    found: List[Limit] = []
    for item in ast.walk(node):
        test = _demanded(item)
        if test is not None and _ABOUT_ARCHITECTURE.search(ast.unparse(test.left)):
            values = _architectures(file, node, test.comparators[0])
            found += [("requires", values, test.lineno)] if values else []
    return found


def _demanded(item: ast.AST) -> Optional[ast.Compare]:
    """The membership that must hold for the code after `item` to be reached."""
    if isinstance(item, ast.Assert):
        test, demanded = item.test, isinstance(item.test, ast.Compare) and isinstance(item.test.ops[0], ast.In)
    elif isinstance(item, ast.If) and any(isinstance(statement, ast.Raise) for statement in item.body):
        test, demanded = item.test, isinstance(item.test, ast.Compare) and isinstance(item.test.ops[0], ast.NotIn)
    else:
        return None
    return test if demanded and isinstance(test, ast.Compare) and len(test.ops) == 1 else None


def _blocks(node: Node) -> List[Limit]:
    """``if major == 11 and minor == 0: raise``."""
    found: List[Limit] = []
    for item in ast.walk(node):
        if not isinstance(item, ast.If) or not any(isinstance(statement, ast.Raise) for statement in item.body):
            continue
        tests = item.test.values if isinstance(item.test, ast.BoolOp) and isinstance(item.test.op, ast.And) else [item.test]
        numbers = dict(pair for pair in map(_equality, tests) if pair is not None)
        if "major" in numbers and len(numbers) == len(tests) and set(numbers) <= {"major", "minor"}:
            found.append(("blocks", [f"{numbers['major']}.{numbers.get('minor', 'x')}"], item.lineno))
    return found


def _equality(test: ast.expr) -> Optional[Tuple[str, int]]:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return None
    left, right = test.left, test.comparators[0]
    if isinstance(left, ast.Name) and isinstance(right, ast.Constant) and isinstance(right.value, int):
        return left.id, right.value
    return None


def _architectures(file: File, node: Optional[Node], value: ast.expr) -> List[str]:
    """A literal list of architectures, or a constant that is one; nothing where an element is something else."""
    if isinstance(value, ast.Name):
        local = [item for item in ast.walk(node) if isinstance(item, ast.Assign) and value.id in _targets(item)] if node is not None else []
        defined = _defined(file, value.id)
        constant = local[0] if local else defined.node if defined is not None else None
        assigned = constant.value if isinstance(constant, (ast.Assign, ast.AnnAssign)) else None
        return [] if assigned is None or isinstance(assigned, ast.Name) else _architectures(file, None, assigned)
    try:
        elements = ast.literal_eval(value)
    except ValueError:
        return []
    found = [architecture(item) for item in elements] if isinstance(elements, (list, tuple, set)) else []
    return [item for item in found if item is not None] if None not in found else []


def architecture(value: Any) -> Optional[str]:
    """``100``, ``sm_103a`` or ``(10, 0)`` as a compute capability, ``sm_100f`` as its family ``10.x``; None for anything else."""
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(item, int) for item in value):
        return f"{value[0]}.{value[1]}"
    match = _ARCHITECTURE.match(str(value)) if isinstance(value, (int, str)) else None
    if match is None:
        return None
    number = int(match.group(1))
    return f"{number // 10}.x" if match.group(2).lower() == "f" else f"{number // 10}.{number % 10}"


def probe(question: Dict[str, Any]) -> Dict[str, Any]:
    """One answer; `found` None: it could not be told, and `missing` says why."""
    answer: Dict[str, Any] = {"found": None, "missing": "", "path": "", "line": 0, "values": {}, "limits": []}
    try:
        found = resolve(question["module"], question["name"])
        if found is None:
            path = find_file(question["module"]).path
            return {**answer, "found": False, "missing": f"{question['module']}:{question['name']}", "path": path}
        line = 0 if found.node is None else found.node.lineno
        return {
            **answer,
            "found": True,
            "path": found.file.path,
            "line": line,
            "values": told(found, question["tells"]),
            "limits": limits(found),
        }
    except Missing as missing:
        return {**answer, "found": False, "missing": str(missing)}
    except Exception as error:  # noqa: BLE001 - source that can't be read is an answer too
        return {**answer, "missing": f"{type(error).__name__}: {error}"}


def load(reference: str) -> Dict[str, Any]:
    """Import a module and get a name of it. `of_import`: the error says that something is not installed.

    A name that its package leaves out is no such error: it may be there where a GPU is visible.
    """
    module, _, name = reference.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in name.split(".") if name else []:
            target = getattr(target, part)
    except ImportError as error:
        return {"error": f"{type(error).__name__}: {error}", "of_import": not _OF_DRIVER.search(str(error))}
    except BaseException as error:  # noqa: BLE001 - an import may even call sys.exit
        return {"error": f"{type(error).__name__}: {error}", "of_import": False}
    return {"error": "", "of_import": False}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    question = json.load(sys.stdin)
    signal.alarm(int(question["seconds"]) + 1)
    for index, asked in enumerate(question["probes"]):
        print(json.dumps({"probe": index, **probe(asked)}), file=answers, flush=True)
    for reference in question["load"]:
        print(json.dumps({"load": reference, **load(reference)}), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
