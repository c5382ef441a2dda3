"""An inventory plugin: the hosts of the program's inventory folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Constructable

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.endings import ending
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.logins import host_variables
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.program import Answer, ProgramMissingError, ask, find_program

DOCUMENTATION = r"""
name: hosts
short_description: The hosts of the orchestrator's inventory folder
description:
  - Gives Ansible the hosts of the program's hosts.yml with their logins, so that an address is written in one file only.
  - A host is the machine itself. Its container and its services are the program's business.
  - A machine that is reached through others (jump) is reached through them here too; their keys must be in ~/.ssh/known_hosts.
extends_documentation_fragment:
  - constructed
options:
  plugin:
    description: This plugin's name.
    type: str
    required: true
    choices: [lxc_gpu.orchestrator.hosts]
  folder:
    description: The program's inventory folder. A relative one counts from the file that names this plugin.
    type: str
    required: true
  executable:
    description: The program on the controller; else the one beside Ansible's own Python, else the one on the E(PATH).
    type: str
author:
  - the authors of lxc-gpu-orchestrator
"""

EXAMPLES = r"""
# gpus.orchestrator.yml
plugin: lxc_gpu.orchestrator.hosts
folder: ../../inventory
groups:
  gpus: "true"
  serving: orchestrator_services | length > 0
keyed_groups:
  - key: orchestrator_tuning
    prefix: tuning
"""


class InventoryModule(BaseInventoryPlugin, Constructable):
    """Asks the program, which checks the folder, and never reads its files."""

    NAME = "lxc_gpu.orchestrator.hosts"

    def verify_file(self, path: str) -> bool:
        return bool(super().verify_file(path)) and path.endswith((".orchestrator.yml", ".orchestrator.yaml"))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        folder = str((Path(path).resolve().parent / Path(self.get_option("folder")).expanduser()).resolve())
        hosts = {host["name"]: host for host in self._ask("hosts", folder).document["hosts"]}
        services = self._ask("services", folder).document["services"]
        for name, host in hosts.items():
            self.inventory.add_host(name)
            variables = host_variables(host, hosts, services, folder)
            for key, value in variables.items():
                self.inventory.set_variable(name, key, value)
            self._construct(name, variables)

    def _construct(self, name: str, variables: dict[str, Any]) -> None:
        strict = self.get_option("strict")
        self._set_composite_vars(self.get_option("compose"), variables, name, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), variables, name, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, name, strict=strict)

    def _ask(self, verb: str, folder: str) -> Answer:
        """Ask the program for a list.

        Raises:
            AnsibleParserError: it can't be run, or the folder has mistakes; each is named with file and line.
        """
        try:
            command = [find_program(self.get_option("executable")), verb, "--json", "--inventory", folder]
            answer = ask(command, {**os.environ, "NO_COLOR": "1"}, self.display.vvv)
        except ProgramMissingError as error:
            raise AnsibleParserError(str(error)) from error
        if answer.exit_code == 0:
            return answer
        why = ending(answer, msg=f"{verb} failed")
        raise AnsibleParserError("; ".join([why["msg"], *why["evidence"]]))
