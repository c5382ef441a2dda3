"""``python -m sglang.launch_server``: imports (here a pause), arguments, then the server."""

from __future__ import annotations

import sys
import time
import warnings


def main() -> int:
    # Late, since every child imports this module again: multiprocessing's way with the main module.
    from sglang.srt.server_args import prepare_server_args
    from sglang.standin.loading import SECONDS
    from sglang.standin.serving import run_server
    from sglang.standin.settings import load_settings

    settings = load_settings()
    time.sleep(settings.scaled(SECONDS["imports"]))
    while settings.hang_at == "imports":
        time.sleep(60)
    return run_server(prepare_server_args(sys.argv[1:]), settings)


if __name__ == "__main__":
    warnings.warn(
        "'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.\n"
        "  Example: sglang serve --model-path <model> [options]",
        UserWarning,
        stacklevel=1,
    )
    sys.exit(main())
