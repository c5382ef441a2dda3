"""``python -m orchestrator``: the same as the console script."""

from orchestrator.cli.program import main

if __name__ == "__main__":
    main()
