"""The inventory: hosts, services and backend profiles, read from YAML into strict models.

Importing this package imports pydantic and PyYAML; the command line imports it only in commands that need an inventory.
"""

from orchestrator.config.compose import base_launch, compose_launch, policy, requirements
from orchestrator.config.inventory import Inventory
from orchestrator.config.loader import load_inventory
from orchestrator.config.models import Backend, Container, Host, Place, Service, Variant
from orchestrator.config.secrets import resolve_secrets

__all__ = [
    "Backend",
    "Container",
    "Host",
    "Inventory",
    "Place",
    "Service",
    "Variant",
    "base_launch",
    "compose_launch",
    "load_inventory",
    "policy",
    "requirements",
    "resolve_secrets",
]
