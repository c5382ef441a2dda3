"""Documentation of the options that the actions share; see ``plugin_utils/action.py``."""

from __future__ import annotations


class ModuleDocFragment:
    """One attribute a group of options."""

    DOCUMENTATION = r"""
options:
  host:
    description:
      - The host's name in the program's inventory (hosts.yml), never an address.
      - Else the variable C(orchestrator_host), else C(inventory_hostname).
    type: str
  inventory:
    description:
      - Folder of the program's inventory on the controller. A relative one counts from the playbook's folder.
      - Else the variable C(orchestrator_inventory), else what the program finds by itself (E(ORCHESTRATOR_INVENTORY), ./inventory).
    type: path
  executable:
    description:
      - The program C(orchestrator) on the controller; else the one beside Ansible's own Python, else the one on the E(PATH).
    type: path
  runs:
    description:
      - Folder on the controller for what a run leaves (plan, events, journal, log). A relative one counts from the playbook's folder.
      - Else E(ORCHESTRATOR_RUNS), else C(runs) in the working directory.
    type: path
author:
  - the authors of lxc-gpu-orchestrator
"""

    SERVICE = r"""
options:
  service:
    description:
      - The service's name in the program's inventory; not needed when the host has one.
    type: str
"""

    WAIT = r"""
options:
  reason:
    description:
      - Why, for the record on the box. What asked for it stands before it, with AWX's job and user.
    type: str
  wait:
    description:
      - Seconds to wait for an order at work. A person's lock is never waited for.
    type: float
    default: 0.0
"""
