"""Telling whether the order that keeps a relaunch away wants the same thing, so that a rerun watches it instead of failing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def reason(subject: str, variables: Mapping[str, Any], given: str | None) -> str:
    """Why, for the record on the box and for whoever looks next.

    AWX gives its jobs the variables awx_job_id and awx_user_name (older releases: tower_...). The accounts and hosts of its execution
    nodes say nothing of who wanted it.
    """
    job = variables.get("awx_job_id") or variables.get("tower_job_id")
    user = variables.get("awx_user_name") or variables.get("tower_user_name")
    by = f"AWX job {job}" + (f" of {user}" if user else "") if job else ""
    return "; ".join(part for part in (f"Ansible: {subject}", by, given) if part)


def same_order(order: Mapping[str, Any] | None, subject: str) -> str | None:
    """The id of a relaunch at work that a task of Ansible's has begun for the same `subject`; None where there is none.

    It is told by its reason: what is wanted, not by whom. Two jobs at once may well want the same.
    """
    if order is None or not order["live"] or order["kind"] != "relaunch":
        return None
    head = f"Ansible: {subject}"
    return str(order["order_id"]) if order["reason"] == head or order["reason"].startswith(f"{head}; ") else None
