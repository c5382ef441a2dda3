"""The listening sockets of this network namespace, asked of the kernel by netlink (sock_diag(7)), and of /proc where it has no such answer.

/proc/net/tcp walks the table of all connections, which has a slot for each that there could be: 5 ms of a processor on a small machine,
and a tenth of a second on one with terabytes of memory. sock_diag walks those that listen.
"""

import _socket as socket  # what it is made of: all the names that socket.py makes for others' sake cost 3 ms
import struct
from contextlib import closing
from typing import Iterator, List, Optional

from orchestrator.agent.procfs import Listener, proc_listeners

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_TCP_LISTEN = 10
"""include/net/tcp_states.h"""
_HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence, port."""
_REQUEST = struct.Struct("=BBBBI48x")
"""struct inet_diag_req_v2: family, protocol, extensions, padding, states, and a socket's id that is empty in a dump."""
_ANSWER = struct.Struct("!BBBBHH44x")
"""The beginning of struct inet_diag_msg: family, state, timer, retransmissions; of the socket's id the source port, in network order."""
_OWNER = struct.Struct("=II")
"""Its end: user id and inode."""
_SECONDS = 2.0


def all_listeners() -> List[Listener]:
    """The listening TCP sockets of this network namespace, IPv4 and IPv6."""
    try:
        return [*_listening(socket.AF_INET), *_listening(socket.AF_INET6)]
    except (OSError, struct.error):  # no such module, a filter that denies netlink, an answer that is cut off
        return proc_listeners()


def _listening(family: int) -> List[Listener]:
    """Raises OSError where the kernel refuses."""
    with closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)) as channel:
        channel.settimeout(_SECONDS)
        body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _TCP_LISTEN)
        channel.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0) + body)
        found: List[Listener] = []
        while True:
            listeners = list(parse_answer(channel.recv(1 << 18)))
            found += [listener for listener in listeners if listener is not None]
            if None in listeners:
                return found


def parse_answer(data: bytes) -> Iterator[Optional[Listener]]:
    """The sockets in one datagram of the kernel's; None is the end of all.

    Raises:
        OSError: it refuses.
    """
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if kind in (_NLMSG_ERROR, _NLMSG_DONE):
            (error,) = struct.unpack_from("=i", data, offset + _HEADER.size)
            if error or kind == _NLMSG_ERROR:
                raise OSError(-error, "sock_diag")
            yield None
            return
        _, _, _, _, port, _ = _ANSWER.unpack_from(data, offset + _HEADER.size)
        user_id, inode = _OWNER.unpack_from(data, offset + _HEADER.size + 64)
        yield Listener(port, inode, user_id)
        offset += (length + 3) & ~3
