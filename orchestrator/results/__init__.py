"""What an operator's command leaves behind on the operator's side."""
