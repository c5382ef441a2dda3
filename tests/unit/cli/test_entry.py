"""The console script starts without what no verb needs, and leaves invoke whole."""

from __future__ import annotations

import subprocess
import sys


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout


def test_neither_mock_nor_asyncio_is_imported_on_the_way_in() -> None:
    program = (
        "import sys; sys.argv = ['orchestrator', '--version']\n"
        "from orchestrator.cli.entry import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print({'unittest.mock', 'asyncio', 'pydantic'} & set(sys.modules))"
    )
    assert run(program).splitlines()[-1] == "set()"


def test_invokes_mock_context_still_works_afterwards() -> None:
    program = (
        "from orchestrator.cli import entry\n"
        "with entry._late_mock():\n"
        "    import invoke\n"
        "context = invoke.MockContext(run=invoke.Result('heard'))\n"
        "print(context.run('x').stdout)"
    )
    assert run(program).strip() == "heard"
