"""What each verb does, readable top to bottom: a flow asks the agent, builds an order and follows it. It prints nothing."""
