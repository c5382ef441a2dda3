"""The operator's end of SSH: connect strictly, reach a place, ship the agent, yield its events.

The only package that connects. Nothing is imported here, so that names and completion stay cheap.
"""
