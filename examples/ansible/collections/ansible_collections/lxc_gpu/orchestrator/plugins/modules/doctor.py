"""Documentation of the action doctor, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor
short_description: Diagnose host, container and service
description:
  - Asks the host, its container and the service how they are, and changes nothing.
  - Fails where a relaunch would be refused. Checks that warn are Ansible's warnings.
extends_documentation_fragment:
  - lxc_gpu.orchestrator.options
  - lxc_gpu.orchestrator.options.service
options:
  backend:
    description:
      - Backend profile to check for; else the service's own.
    type: str
attributes:
  check_mode:
    support: full
    description: The same as without.
  diff_mode:
    support: none
    description: Nothing changes.
  async:
    support: none
    description: It takes seconds.
"""

EXAMPLES = r"""
- name: Look before anything is touched
  lxc_gpu.orchestrator.doctor:
    backend: flashinfer_cutedsl
"""

RETURN = r"""
verdicts:
  description: The checks that did not pass, each with its section, outcome, detail, evidence, source and next step.
  returned: always
  type: list
  elements: dict
passed:
  description: How many checks passed.
  returned: always
  type: int
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
