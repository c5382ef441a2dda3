"""Commands to type next, with the names by which an operator knows the host and the service. Pure."""

import re

_BARE_COMMAND = re.compile(
    r"\bfab (status|logs|launch|relaunch|teardown|doctor|attach|resume|rollback|boot|adopt|measure|budget|profile|lock\.\w+)\b(?! --host)"
)


def command(verb: str, host: str, service: str, *more: str) -> str:
    """A command line about a service."""
    return " ".join(["fab", verb, f"--host {host}", f"--service {service}", *more])


def named(next_step: str, host: str, service: str) -> str:
    """A next step from the box, which doesn't know how it is called elsewhere: its commands name the host and the service."""
    return _BARE_COMMAND.sub(lambda match: command(match[1], host, service), next_step)
