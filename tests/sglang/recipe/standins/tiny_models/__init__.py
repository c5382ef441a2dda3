"""The model classes that the tests need (SGLANG_EXTERNAL_MODEL_PACKAGE), so that the server does not import every model file it has."""
