"""A question whose answer is wanted later, asked beside everything else."""

import threading
from typing import Callable, Generic, Optional, TypeVar

T = TypeVar("T")


class Asking(Generic[T]):
    """Calls `ask` in a thread, which ends with the process."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answer: "list[T]" = []
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether :meth:`result` has not to wait."""
        return not self._thread.is_alive()

    def result(self) -> T:
        """The answer, as soon as it is there. Raises what `ask` raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def _run(self) -> None:
        try:
            self._answer.append(self._ask())
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is wanted
            self._error = error
