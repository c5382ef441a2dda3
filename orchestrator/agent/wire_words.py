"""Words for what crosses, the same on the box and on the operator's screen. Pure."""

import time

from orchestrator.agent.wire import GpuLock, Manager, ManagerKind, OrderStatus, PersonLock


def managed(manager: Manager) -> str:
    """Who keeps a server running, as the end of a sentence about it."""
    if manager.kind == ManagerKind.OWN_UNIT:
        return f"managed by this program in unit {manager.name}"
    if manager.kind == ManagerKind.OWN_SESSION:
        return f"managed by this program in {manager.name}"
    if manager.kind == ManagerKind.SYSTEMD_UNIT:
        return f"managed by systemd unit {manager.name}"
    if manager.kind == ManagerKind.SESSION:
        return f"started by hand ({manager.name})" if manager.name else "started by hand"
    return f"managed by {manager.name or manager.kind}"


def utc(unix_time: float) -> str:
    """A moment, for whoever's clock it is read by."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_time))


def held_by(lock: PersonLock) -> str:
    """By whom, since when and why."""
    return f"by {lock.operator or 'somebody'} since {utc(lock.since)}" + (f": {lock.reason}" if lock.reason else "")


def locked_by(service: str, lock: PersonLock) -> str:
    """A person's lock as a sentence."""
    return f"{service} is locked {held_by(lock)}"


def at_work(order: OrderStatus) -> str:
    """An order at work as a sentence: whose, since when, in which state."""
    reason = f" ({order.reason})" if order.reason else ""
    again = f", taken up again {order.resumed} times" if order.resumed else ""
    since = f", since {utc(order.began)}" if order.began else ""
    who = f"order {order.order_id} is at work on {order.service or 'it'}: {order.kind} by {order.operator}{reason}"
    return f"{who}, in {order.state}{since}{again}"


def gpu_held_by(lock: GpuLock) -> str:
    """An order's hold on a GPU as a sentence."""
    return f"{lock.uuid} is held by the {lock.kind} {lock.order_id} of {lock.service} by {lock.operator}, since {utc(lock.since)}"
