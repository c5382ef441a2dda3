"""``python -m orchestrator``: the same as the console script."""

from orchestrator.cli.entry import main

if __name__ == "__main__":
    main()
