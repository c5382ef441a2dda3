"""How a verb says that it could not, or would not, do what was asked."""

from typing import Optional, Sequence

from orchestrator.agent import wire_base


class AgentRefusal(Exception):  # noqa: N818
    """A foreseen failure, sent to the operator as :class:`wire_base.AgentFailure`. For `category` see there."""

    def __init__(self, category: str, message: str, evidence: Sequence[str] = (), next_step: Optional[str] = None) -> None:
        super().__init__(message)
        self.failure = wire_base.AgentFailure(category, message, list(evidence), next_step)
