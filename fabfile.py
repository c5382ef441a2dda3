"""Plain ``fab`` finds the program's verbs here; the console script ``orchestrator`` has the same ones."""

from orchestrator.cli import edge
from orchestrator.cli.program import adopt
from orchestrator.cli.tasks import namespace as namespace

adopt(edge.front_end)
