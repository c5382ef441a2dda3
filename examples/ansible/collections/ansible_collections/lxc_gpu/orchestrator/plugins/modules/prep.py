"""Documentation of the action prep, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: prep
short_description: Bring a host to its tuning profile, or back
description:
  - Compares the knobs of a tuning profile (NUMA balancing, the CPU governor, MaxReadReq and the like) with the host, sets what differs,
    and reads every value back. A second run changes nothing.
  - What can't be set or proven from there fails the task, exit code 8, with the commands by hand.
extends_documentation_fragment:
  - lxc_gpu.orchestrator.options
  - lxc_gpu.orchestrator.options.wait
options:
  profile:
    description:
      - Tuning profile, instead of the host's own.
    type: str
  state:
    description:
      - C(applied) sets the profile.
      - C(reverted) puts back what was there before the first preparation, and applies nothing at boot any more.
      - C(unpersisted) only ends that something is applied at boot.
    type: str
    choices: [applied, reverted, unpersisted]
    default: applied
  persist:
    description:
      - Also have the profile applied at each boot. Left out, what is done at boot stays as it is.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: The program's plan; nothing is written.
  diff_mode:
    support: full
    description: The knobs that changed, or would, and files for the next boot.
  async:
    support: none
    description: It takes seconds.
"""

EXAMPLES = r"""
- name: Bring the host to its profile
  lxc_gpu.orchestrator.prep:
    inventory: ../../inventory
    persist: true

- name: Go on where something is left for a person, who is told what
  lxc_gpu.orchestrator.prep:
  register: prepared
  failed_when: prepared.exit_code not in [0, 8]
"""

RETURN = r"""
knobs:
  description: Each knob with what was wanted, its outcome, its values before and after, where they were read, and commands by hand.
  returned: when the host answered
  type: list
  elements: dict
counts:
  description: How many knobs had each outcome.
  returned: when the host was asked
  type: dict
profile:
  description: The tuning profile.
  returned: when the host was asked
  type: str
files:
  description: Files made or removed for the next boot.
  returned: when the host was asked
  type: list
  elements: str
exit_code:
  description: The program's exit code, as its README has them. 4 is Ansible's unreachable, everything else but 0 is failed.
  returned: always
  type: int
msg:
  description: What came of it, in one line.
  returned: always
  type: str
evidence:
  description: Lines that show it.
  returned: always
  type: list
  elements: str
next_step:
  description: The command to type next.
  returned: always
  type: str
"""
