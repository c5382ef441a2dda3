"""The command line: Fabric tasks that parse, call a flow, render its answer and set the exit code. No logic."""
