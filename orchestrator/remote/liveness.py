"""Notice a peer that has silently gone: paramiko's own keepalive sends but never counts what comes back."""

from __future__ import annotations

import threading

import paramiko


class Liveness:
    """Asks the peer for a sign of life every `interval` seconds and closes the transport when one is `unanswered` for so long.

    The question is OpenSSH's ``keepalive@openssh.com`` with a reply wanted; any answer, a refusal too, counts. Closing the
    transport wakes whoever waits on one of its channels.
    """

    def __init__(self, transport: paramiko.Transport, interval: float, unanswered: float) -> None:
        self.gave_up = False
        self.unanswered = unanswered
        self._transport = transport
        self._interval = interval
        self._stopped = threading.Event()
        threading.Thread(target=self._ask, name="ssh-liveness", daemon=True).start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()

    def _ask(self) -> None:
        while not self._stopped.wait(self._interval):
            alarm = threading.Timer(self.unanswered, self._give_up)
            alarm.daemon = True
            alarm.start()
            try:
                self._transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, EOFError, OSError):
                return
            finally:
                alarm.cancel()
            if not self._transport.is_active():
                return

    def _give_up(self) -> None:
        if not self._stopped.is_set():
            self.gave_up = True
            self._transport.close()
