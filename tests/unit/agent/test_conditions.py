from __future__ import annotations

import os
import resource

from orchestrator.agent import wire
from orchestrator.agent.conditions import OUR_LIMITS, parse_conditions, parse_limits, read_conditions, systemd_settings

STATUS = (
    "Name:\tpython\nUmask:\t0027\nState:\tS (sleeping)\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1001\t1000\t1000\nGroups:\t5 6 1000 \n"
)
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 524288               files
Max nice priority         0                    0
Max realtime timeout      unlimited            unlimited            us
Max something new         1                    2                    bytes
"""


def test_conditions_are_read_from_what_the_kernel_prints() -> None:
    found = parse_conditions(STATUS, LIMITS)
    assert (found.group, found.groups, found.umask) == (1001, [5, 6, 1000], 0o27)
    assert found.limits == {"CPU": [None, None], "NOFILE": [1024, 524288], "NICE": [0, 0], "RTTIME": [None, None]}


def test_this_process_has_all_limits_and_they_are_what_it_says_itself() -> None:
    found = read_conditions(os.getpid())
    assert found is not None
    assert len(found.limits) == 16
    soft, hard = (None if bound == resource.RLIM_INFINITY else bound for bound in resource.getrlimit(resource.RLIMIT_NOFILE))
    assert found.limits["NOFILE"] == [soft, hard]
    assert found.group == os.getegid()
    assert sorted(found.groups) == sorted(os.getgroups())


def test_a_process_that_is_gone_has_none() -> None:
    assert read_conditions(2**22 + 1) is None


def test_without_conditions_a_unit_gets_our_limits_and_nothing_else() -> None:
    assert systemd_settings(None, 0) == ["LimitNOFILE=1048576:1048576", "LimitMEMLOCK=infinity:infinity"]
    assert parse_limits("nonsense") == {}
    assert OUR_LIMITS["MEMLOCK"] == [None, None]


def test_a_group_that_its_user_brings_along_is_not_said_again() -> None:
    assert systemd_settings(wire.Conditions(5, [], 0o22), 5) == ["UMask=0022"]
    assert systemd_settings(wire.Conditions(6, [6], 0o77), 5) == ["UMask=0077", "Group=6", "SupplementaryGroups=6"]
