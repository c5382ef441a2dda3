"""What applies a tuning profile at boot, as part of a diagnosis: whether it did at this boot, and will at the next."""

from typing import List

from orchestrator.agent.doctor_context import Context
from orchestrator.agent.wire import Outcome, Verdict

_SAID_LINES = 6


def check_at_boot(context: Context) -> List[Verdict]:
    """Nothing in a container, nor where nothing is applied at boot."""
    from orchestrator.agent import persistence

    found = None if context.in_container else persistence.describe(context.request.state_root, context.files)
    if found is None:
        return []
    source = f"systemctl status {found.unit}"
    what = f"{found.unit}, which applies {found.profile} at boot"
    if found.problem is not None or not found.enabled:
        problem = found.problem or "it is not enabled"
        profile = "" if found.profile == "unknown" else f" --profile {found.profile}"
        anew = f"fab prep --unpersist && fab prep --persist{profile}"
        return [Verdict("at_boot", Outcome.WARN, f"{what}: {problem}", found.said, anew, source)]
    if found.state == "failed":
        return [Verdict("at_boot", Outcome.WARN, f"{what}, FAILED at this boot", found.said[-_SAID_LINES:], "fab prep", source)]
    done = {"active": "at this boot", "inactive": "not yet: at the next boot"}.get(found.state, f"its state is {found.state}")
    return [Verdict("at_boot", Outcome.PASS, f"{found.unit} applies {found.profile}, {done}", source=source)]
