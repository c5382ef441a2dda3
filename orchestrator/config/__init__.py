"""The inventory: hosts, services, backend profiles, tuning profiles and routers, read from YAML into strict models.

Importing this package imports pydantic and PyYAML; the command line imports it only in commands that need an inventory.
"""

from orchestrator.config.compose import Overlay, base_launch, compose_launch, expectations, policy, requirements
from orchestrator.config.hooks import BeforeHookModel, HookModel, Hooks, WebhookModel
from orchestrator.config.inventory import Inventory, NamedHost
from orchestrator.config.loader import load_inventory, load_profiles
from orchestrator.config.models import Backend, Container, Host, Place, Service, Variant
from orchestrator.config.routers import Replica, Router
from orchestrator.config.secrets import resolve_router_key, resolve_secrets, resolve_webhook
from orchestrator.config.tuning import TuningProfile
from orchestrator.config.variants import choose, signs

__all__ = [
    "Backend",
    "BeforeHookModel",
    "Container",
    "HookModel",
    "Hooks",
    "Host",
    "Inventory",
    "NamedHost",
    "Overlay",
    "Place",
    "Replica",
    "Router",
    "Service",
    "TuningProfile",
    "Variant",
    "WebhookModel",
    "base_launch",
    "choose",
    "compose_launch",
    "expectations",
    "load_inventory",
    "load_profiles",
    "policy",
    "requirements",
    "resolve_router_key",
    "resolve_secrets",
    "resolve_webhook",
    "signs",
]
