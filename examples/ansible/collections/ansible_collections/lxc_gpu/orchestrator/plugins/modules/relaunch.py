"""Documentation of the action relaunch, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: relaunch
short_description: Have a service run with another backend
description:
  - Replaces the running SGLang server by one with only the backend changed, or puts the old one back if that fails.
  - A supervisor on the box does it. When the task, Ansible or the controller is ended, the change goes on there to a safe end; the same
    task again watches it to its end instead of failing.
  - Where the server already is what was asked for, nothing is changed.
extends_documentation_fragment:
  - lxc_gpu.orchestrator.options
  - lxc_gpu.orchestrator.options.service
  - lxc_gpu.orchestrator.options.wait
options:
  backend:
    description:
      - Backend profile, with overlays if wanted, such as C(flashinfer_cutedsl) or C(flashinfer_cutedsl+ep8).
    type: str
    required: true
  accept_drift:
    description:
      - Let go of differences between the running server and the service that no backend makes.
    type: bool
    default: false
  force:
    description:
      - Overrule refused checks, except those that protect somebody else's work. Also starts the same server again where nothing would
        change, so that the task always changes something.
    type: bool
    default: false
  sequential:
    description:
      - Start the new server after the old one's stop, also where it could start beside it.
    type: bool
    default: false
  grace:
    description:
      - Seconds from the end of the drain until SIGKILL, instead of the service's own.
    type: float
  measure:
    description:
      - Time decoding before and after.
    type: bool
    default: true
attributes:
  check_mode:
    support: full
    description: The program's plan, from the box; nothing is changed.
  diff_mode:
    support: full
    description: Arguments and environment that differ between the servers.
  async:
    support: none
    description: Not needed, as the change is carried out on the box. Whoever ends the wait (C(timeout), Ctrl-C) runs the task again later.
"""

EXAMPLES = r"""
- name: One box at a time, each proven before the next
  hosts: gpus
  gather_facts: false
  serial: 1
  tasks:
    - name: Serve with another backend
      lxc_gpu.orchestrator.relaunch:
        backend: flashinfer_cutedsl
      environment:
        GLM5_API_KEY: "{{ vault_glm5_api_key }}"
"""

RETURN = r"""
state:
  description: The order's last state, such as DONE, RESTORED, DOWN or REFUSED; null where none was made.
  returned: always
  type: str
failure_class:
  description: Why the new server failed, such as C(kernel_missing); null where none did.
  returned: always
  type: str
service_state:
  description: What serves now.
  returned: always
  type: str
dark_seconds:
  description: For how long nothing answered.
  returned: always
  type: float
lost_requests:
  description: Requests that were lost by the stop; null where nobody can say.
  returned: always
  type: int
attached_to:
  description: The order of an earlier run of this task that was watched to its end.
  returned: always
  type: str
verdicts:
  description: The checks of the plan that did not pass.
  returned: when there was a plan
  type: list
  elements: dict
refusals:
  description: Why it will not be done.
  returned: when there was a plan
  type: list
  elements: str
differences:
  description: Every argument and variable that differs, with its origin.
  returned: when there was a plan
  type: list
  elements: dict
by_hand:
  description: The commands that come nearest.
  returned: when there was a plan
  type: list
  elements: str
result:
  description: How the order ended, with the medians of its decode timings; all that it left is in the run folder.
  returned: always
  type: dict
run:
  description: The run folder on the controller.
  returned: always
  type: str
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
