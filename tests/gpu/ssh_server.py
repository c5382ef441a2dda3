"""``python -m tests.gpu.ssh_server DIR HOST PORT``: the lab's SSH server, before this machine as it is.

Commands get the variables that whoever started the driver has for programs, libraries and CUDA, as sshd's PAM session would give them.
"""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from orchestrator.lab import server
from orchestrator.lab.layout import ADDRESS, MARKER, Layout

KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")


def main(arguments: list[str]) -> int:
    folder, host, port = arguments
    layout = Layout.of(Path(folder))
    user = getpass.getuser()
    own = {name: os.environ[name] for name in KEPT if name in os.environ}
    own |= {"HOME": str(Path.home()), "USER": user, "LOGNAME": user, "SHELL": "/bin/sh", MARKER: str(layout.directory)}

    def environment(_host: str, client_port: int) -> dict[str, str]:
        return {**own, "SSH_CONNECTION": f"{ADDRESS} {client_port} {ADDRESS} 22"}

    return server.run(layout, {host: int(port)}, environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
