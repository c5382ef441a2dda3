"""What each verb prints with ``--json``: one envelope around one answer. The JSON Schema in docs/schema is made of these types."""
