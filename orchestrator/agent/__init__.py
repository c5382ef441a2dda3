"""The program that runs in a place. Standard library only, Python >= 3.9; imports nothing above itself.

Nothing is imported here: each verb pays only for the modules that it needs. For the same reason a pattern that most answers do without is
text, which :mod:`re` compiles, and keeps, when it is first used.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - the place's, not the operator's
    import zipimport
    from typing import Any

    def _create_module(loader: Any, spec: Any) -> None:
        """A module of the usual kind."""

    def _exec_module(loader: Any, module: Any) -> None:
        exec(loader.get_code(module.__name__), module.__dict__)  # noqa: S102 - what import does

    # As Python 3.10 has them. Without them a module of an archive is loaded in an older way (importlib._bootstrap's
    # _load_backward_compatible), which shows it to other threads while it is only half there.
    zipimport.zipimporter.create_module = _create_module
    zipimport.zipimporter.exec_module = _exec_module
