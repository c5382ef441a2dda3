"""tuned's profile. tuned sets many things at once, which is why it is dealt with before all other knobs."""

import re
from typing import Dict, List, Optional

from orchestrator.agent.kernel_files import Reading
from orchestrator.agent.knobs import AbsentError, Knob, Machine, Readings, RefusedError, shell_word

OFF = "off"
"""The value while no profile is applied, whatever /etc/tuned names."""

SECONDS = 30.0
_PROGRAM = "/usr/sbin/tuned-adm"
_PID_FILE = "/run/tuned/tuned.pid"
_RIVAL = "power-profiles-daemon.service"
_ASK_SECONDS = 5.0


class TunedProfile(Knob):
    """The profile that a running tuned applies, ``off`` where none is."""

    source = "/etc/tuned/active_profile"
    container_shows = False
    disturbs = True

    def read(self, machine: Machine) -> Readings:
        if not machine.files.exists(_PROGRAM):
            raise AbsentError("tuned is not installed")
        if not self._runs(machine):
            return {"": Reading(OFF, self.source)}
        reading = machine.files.read(self.source)
        return {"": reading if reading.value is None else reading._replace(value=" ".join(reading.value.split()) or OFF)}

    def obstacle(self, machine: Machine, item: str, wanted: str) -> Optional[str]:
        # The two overwrite each other's settings, and tuned's unit conflicts with the other's.
        rival = machine.run(["systemctl", "is-active", _RIVAL], _ASK_SECONDS)
        if rival.text.strip() == "active":
            return f"{_RIVAL} runs and sets the same things: systemctl disable --now {_RIVAL}"
        if not self._runs(machine):
            return "tuned does not run: systemctl enable --now tuned"
        if wanted == OFF or self._known(machine, wanted):
            return None
        return f"tuned has no profile {wanted}: tuned-adm list"

    def write(self, machine: Machine, item: str, value: str) -> None:
        output = machine.run(["tuned-adm", *self._words(value)], SECONDS)
        if not output.good:
            raise RefusedError(f"tuned-adm: {(output.errors.strip() or output.text.strip() or 'no answer')[:200]}")

    def commands(self, wanted: Dict[str, str]) -> List[str]:
        return [" ".join(["tuned-adm", *map(shell_word, self._words(value))]) for value in wanted.values()]

    def _words(self, value: str) -> List[str]:
        return [OFF] if value == OFF else ["profile", *value.split()]

    def _runs(self, machine: Machine) -> bool:
        pid = machine.files.text(_PID_FILE) or ""
        return pid.isdigit() and machine.files.text(f"/proc/{pid}/comm") == "tuned"

    def _known(self, machine: Machine, names: str) -> bool:
        folders = ("/etc/tuned", "/etc/tuned/profiles", "/usr/lib/tuned", "/usr/lib/tuned/profiles")
        return all(
            re.match(r"[\w.-]+\Z", name) and any(machine.files.exists(f"{folder}/{name}/tuned.conf") for folder in folders)
            for name in names.split()
        )
